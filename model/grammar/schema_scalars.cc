#include "model/grammar/schema_scalars.h"

#include <cmath>
#include <optional>
#include <utility>

#include "model/grammar/pattern_grammar.h"

namespace penstock {
namespace {

// Formats that the library enforces. Others are annotations, as JSON Schema says of all.
constexpr std::string_view kFormats[] = {"date", "time", "date-time", "uuid",
                                         "ipv4", "ipv6", "email"};

SchemaJson Marked(GatedSchema::StringRule rule, GatedSchema& out) {
  const auto found = std::ranges::find(out.strings, rule);
  const auto index = found - out.strings.begin();
  if (found == out.strings.end()) out.strings.push_back(std::move(rule));
  return SchemaJson({{"const", fmt::format("{}{}", out.mark, index)}});
}

absl::StatusOr<SchemaJson> Matching(const SchemaJson& pattern, const std::string& pointer,
                                    GatedSchema& out) {
  if (!pattern.is_string()) return SchemaFault(pointer + "/pattern", "must be a string");
  const auto parsed = Pattern::Parse(pattern.get<std::string>());
  if (!parsed.ok()) return SchemaFault(pointer + "/pattern", "{}", Message(parsed.status()));
  return Marked({.expression = fmt::format(R"("\"" {} "\"")", JsonExpression(*parsed))}, out);
}

absl::StatusOr<std::optional<double>> BoundOf(const SchemaJson& said, const char* keyword,
                                              const std::string& pointer) {
  constexpr double kMost = 1e15;  // whole numbers up to here are exact
  if (!said.contains(keyword)) return std::nullopt;
  const SchemaJson& value = said[keyword];
  if (!value.is_number() || !(std::abs(value.get<double>()) <= kMost))
    return SchemaFault(fmt::format("{}/{}", pointer, keyword),
                       "is {}; it may be a number of up to 1e15", value.dump());
  return value.get<double>();
}

}  // namespace

absl::StatusOr<SchemaJson> StringSchema(const SchemaJson& said, const std::string& pointer,
                                        GatedSchema& out) {
  ASSIGN_OR_RETURN(const int least,
                   SchemaCount(said, "minLength", 0, SchemaLimits::kMinLength, pointer));
  ASSIGN_OR_RETURN(const int most,
                   SchemaCount(said, "maxLength", -1, SchemaLimits::kMaxLength, pointer));
  const bool bounded = least > 0 || most >= 0;
  const SchemaJson format = said.value("format", SchemaJson());
  const bool enforced = format.is_string() && HasName(kFormats, format.get<std::string>());
  if (said.contains("pattern")) {
    if (bounded || enforced)
      return SchemaFault(pointer,
                         "has `pattern` beside a length or `format`; write them as one pattern");
    return Matching(said["pattern"], pointer, out);
  }
  if (enforced) {
    if (bounded) return SchemaFault(pointer, "has `format` beside a length");
    return SchemaJson({{"type", "string"}, {"format", format}});
  }
  if (!bounded) return SchemaJson({{"type", "string"}});
  if (most >= 0 && most < least)
    return SchemaFault(pointer, "has maxLength {} below minLength {}", most, least);
  return Marked({.least = least, .most = most}, out);
}

absl::StatusOr<SchemaJson> IntegerSchema(const SchemaJson& said, const std::string& pointer) {
  if (said.contains("multipleOf") && said["multipleOf"] != 1)
    return SchemaFault(pointer + "/multipleOf", "is not supported");
  SchemaJson out({{"type", "integer"}});
  ASSIGN_OR_RETURN(const auto minimum, BoundOf(said, "minimum", pointer));
  ASSIGN_OR_RETURN(const auto above, BoundOf(said, "exclusiveMinimum", pointer));
  ASSIGN_OR_RETURN(const auto maximum, BoundOf(said, "maximum", pointer));
  ASSIGN_OR_RETURN(const auto below, BoundOf(said, "exclusiveMaximum", pointer));
  std::optional<double> least, most;
  if (minimum) least = std::ceil(*minimum);
  if (above) least = std::max(least.value_or(-2e15), std::floor(*above) + 1);
  if (maximum) most = std::floor(*maximum);
  if (below) most = std::min(most.value_or(2e15), std::ceil(*below) - 1);
  if (least && most && *least > *most)
    return SchemaFault(pointer, "allows no integer: the least is {:.0f}, the greatest {:.0f}",
                       *least, *most);
  if (least) out["minimum"] = static_cast<int64_t>(*least);
  if (most) out["maximum"] = static_cast<int64_t>(*most);
  return out;
}

absl::StatusOr<SchemaJson> NumberSchema(const SchemaJson& said, const std::string& pointer) {
  if (said.contains("multipleOf")) return SchemaFault(pointer + "/multipleOf", "is not supported");
  SchemaJson out({{"type", "number"}});
  for (const char* keyword : {"minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"}) {
    ASSIGN_OR_RETURN(const auto bound, BoundOf(said, keyword, pointer));
    if (bound) out[keyword] = said[keyword];
  }
  return out;
}

}  // namespace penstock
