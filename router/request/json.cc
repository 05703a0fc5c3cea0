#include "router/request/json.h"

#include <cmath>
#include <iterator>
#include <vector>

#include "base/utf8.h"
#include "router/request/error_detail.h"

namespace penstock {
namespace {

// SAX handler of nlohmann::json that builds a value within limits. Returning false ends the parse.
class Builder final : public nlohmann::json_sax<Json> {
 public:
  explicit Builder(const JsonLimits& limits) : limits_(limits) {}

  bool null() override { return Add(nullptr); }
  bool boolean(bool value) override { return Add(value); }
  bool number_integer(int64_t value) override { return Add(value); }
  bool number_unsigned(uint64_t value) override { return Add(value); }
  bool number_float(double value, const std::string&) override { return Add(value); }
  bool string(std::string& value) override { return Add(std::move(value)); }
  bool binary(Json::binary_t&) override { return false; }
  bool start_object(size_t) override { return Open(Json::object()); }
  bool start_array(size_t) override { return Open(Json::array()); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }
  bool key(std::string& value) override {
    if (open_.back()->contains(value)) {
      return Fail(InvalidArgument("invalid JSON: the key `{}` is there twice", ShownText(value)));
    }
    key_ = std::move(value);
    return true;
  }
  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    const bool out_of_range = error.id / 100 == 4;  // nlohmann::json's ids 4xx: out_of_range
    return Fail(
        InvalidArgument("invalid JSON at byte {}: {}", position,
                        out_of_range ? "number out of range" : "unexpected end or character"));
  }

  absl::StatusOr<Json> Take() {
    if (!status_.ok()) return status_;
    return std::move(root_);
  }

 private:
  bool Fail(absl::Status status) {
    status_ = WithDetail(std::move(status), {.reason = "invalid_json"});
    return false;
  }

  Json* Place(Json value) {
    if (++values_ > limits_.values) {
      Fail(InvalidArgument("invalid JSON: more than {} values, the limit", limits_.values));
      return nullptr;
    }
    const bool listed = !open_.empty() && open_.back()->is_array();
    const bool small = listed && value.is_primitive() && !value.is_string();
    if (!small && ++elements_ > limits_.elements) {
      Fail(InvalidArgument(
          "invalid JSON: more than {} strings, lists, objects and fields, the limit",
          limits_.elements));
      return nullptr;
    }
    if (open_.empty()) return &(root_ = std::move(value));
    Json& parent = *open_.back();
    if (parent.is_array()) {
      parent.push_back(std::move(value));
      return &parent.back();
    }
    return &(parent[key_] = std::move(value));
  }

  bool Add(Json value) { return Place(std::move(value)) != nullptr; }

  bool Open(Json empty) {
    if (open_.size() >= limits_.depth) {
      return Fail(
          InvalidArgument("invalid JSON: more than {} levels deep, the limit", limits_.depth));
    }
    Json* placed = Place(std::move(empty));
    if (placed != nullptr) open_.push_back(placed);
    return placed != nullptr;
  }

  bool Close() {
    open_.pop_back();
    return true;
  }

  const JsonLimits limits_;
  Json root_;
  // The containers from the root to the open one. Each is the last child of the one before, so
  // appending to the last one moves none of the others.
  std::vector<Json*> open_;
  std::string key_;
  size_t values_ = 0;
  size_t elements_ = 0;
  absl::Status status_;
};

absl::Status WrongKind(const std::string& field, std::string_view wanted, const Json& value) {
  return WithDetail(BadField(field, "must be {}, not {}", wanted, KindOf(value)),
                    {.reason = "invalid_type"});
}

}  // namespace

absl::StatusOr<Json> ParseJson(std::string_view text, const JsonLimits& limits) {
  Builder builder(limits);
  Json::sax_parse(text.begin(), text.end(), &builder);
  return builder.Take();
}

std::string_view KindOf(const Json& value) {
  switch (value.type()) {
    case Json::value_t::null:
      return "null";
    case Json::value_t::boolean:
      return "a boolean";
    case Json::value_t::string:
      return "a string";
    case Json::value_t::array:
      return "a list";
    case Json::value_t::object:
      return "an object";
    default:
      return "a number";
  }
}

void FieldReader::Note(absl::Status status) {
  if (status_.ok()) status_ = std::move(status);
}

const Json* FieldReader::Any(const char* name) {
  const auto found = object_.find(name);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

const Json* FieldReader::Typed(const char* name, bool (Json::*is)() const noexcept,
                               std::string_view what) {
  const Json* value = Any(name);
  if (value == nullptr || (value->*is)()) return value;
  Note(WrongKind(PathOf(name), what, *value));
  return nullptr;
}

const std::string* FieldReader::String(const char* name) {
  const Json* value = Typed(name, &Json::is_string, "a string");
  return value == nullptr ? nullptr : value->get_ptr<const std::string*>();
}

std::optional<double> FieldReader::Number(const char* name) {
  const Json* value = Typed(name, &Json::is_number, "a number");
  if (value == nullptr) return std::nullopt;
  return value->get<double>();
}

std::optional<bool> FieldReader::Bool(const char* name) {
  const Json* value = Typed(name, &Json::is_boolean, "true or false");
  if (value == nullptr) return std::nullopt;
  return value->get<bool>();
}

const Json* FieldReader::Array(const char* name) { return Typed(name, &Json::is_array, "a list"); }

const Json* FieldReader::Object(const char* name) {
  return Typed(name, &Json::is_object, "an object");
}

std::optional<int64_t> FieldReader::Integer(const char* name, int64_t min, int64_t max) {
  const Json* value = Any(name);
  if (value == nullptr) return std::nullopt;
  const auto integer = IntegerOf(PathOf(name), *value, min, max);
  if (integer.ok()) return *integer;
  Note(integer.status());
  return std::nullopt;
}

absl::StatusOr<int64_t> IntegerOf(const std::string& field, const Json& value, int64_t min,
                                  int64_t max) {
  if (!value.is_number()) return WrongKind(field, "an integer", value);
  const bool whole =
      !value.is_number_float() || std::floor(value.get<double>()) == value.get<double>();
  if (!whole)
    return WithDetail(BadField(field, "must be an integer, not {}", value.get<double>()),
                      {.reason = "invalid_type"});
  constexpr double kBeyond = 9.3e18;  // beyond the range of 64-bit integers
  const double rough = value.get<double>();
  const bool beyond = value.is_number_unsigned()
                          ? value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)
                          : std::fabs(rough) > kBeyond;
  const int64_t exact = beyond || (value.is_number_float() && std::fabs(rough) >= 9.2e18)
                            ? (rough > 0 ? INT64_MAX : INT64_MIN)
                            : value.get<int64_t>();
  if (!beyond && exact >= min && exact <= max) return exact;
  return BadField(field, "is {}; it must be in [{}, {}]", value.dump(), min, max);
}

void AppendJsonString(std::string_view text, std::string& out) {
  constexpr char kHex[] = "0123456789abcdef";
  out += '"';
  size_t plain = 0;  // start of the text that is not appended yet
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (c >= 0x20 && c != '"' && c != '\\') continue;
    out += text.substr(plain, i - plain);
    plain = i + 1;
    if (c == '\n') {
      out += "\\n";
    } else if (c == '"' || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else {
      out += "\\u00";
      out += kHex[c >> 4];
      out += kHex[c & 15];
    }
  }
  out += text.substr(plain);
  out += '"';
}

void AppendJsonNumber(float value, std::string& out) {
  constexpr float kAsGoodAsNever = -9999.0f;  // OpenAI's documented log probability of "never"
  if (std::isnan(value)) value = kAsGoodAsNever;
  if (std::isinf(value)) value = value < 0 ? kAsGoodAsNever : -kAsGoodAsNever;
  fmt::format_to(std::back_inserter(out), "{}", value);
}

std::string ReplaceInvalidUtf8(std::string_view text) {
  std::string valid;
  while (true) {
    const size_t bad = FirstInvalidUtf8(text);
    valid += text.substr(0, bad);
    if (bad == std::string_view::npos) return valid;
    valid += "\xef\xbf\xbd";
    text.remove_prefix(bad + 1);
  }
}

}  // namespace penstock
