#include "base/mapped_file.h"
#include "model/template/chat_template.h"
#include "model/tokenizer/tokenizer_json.h"

namespace penstock {
namespace {

std::string_view TextOf(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

// chat_template is a string, or a list of {"name", "template"}.
absl::StatusOr<std::string> TemplateOf(const JsonField& field) {
  if (!field.is_array()) return field.String();
  for (size_t i = 0; i < field.size(); ++i) {
    ASSIGN_OR_RETURN(const std::string name, field[i]["name"].String());
    if (name == "default") return field[i]["template"].String();
  }
  return InvalidArgument("{} has no template named \"default\"", field.path());
}

absl::StatusOr<std::string> ReadFromConfig(const std::string& directory) {
  const std::string path = directory + "/tokenizer_config.json";
  const absl::StatusOr<MappedFile> file = MappedFile::Open(path);
  if (!file.ok() && !absl::IsNotFound(file.status())) return file.status();
  if (file.ok()) {
    ASSIGN_OR_RETURN(const nlohmann::json config, ParseJson(TextOf(*file), path));
    const JsonField field = JsonField(config, "")["chat_template"];
    if (field.present()) {
      absl::StatusOr<std::string> text = TemplateOf(field);
      if (!text.ok()) return Annotate(text.status(), path);
      return text;
    }
  }
  return NotFound(
      "{} has no chat template: neither chat_template.jinja nor tokenizer_config.json's "
      "chat_template",
      directory);
}

}  // namespace

absl::StatusOr<std::unique_ptr<const ChatTemplate>> LoadChatTemplate(const std::string& directory) {
  const absl::StatusOr<MappedFile> file = MappedFile::Open(directory + "/chat_template.jinja");
  if (!file.ok() && !absl::IsNotFound(file.status())) return file.status();
  std::string text;
  if (file.ok()) {
    text = TextOf(*file);
  } else {
    ASSIGN_OR_RETURN(text, ReadFromConfig(directory));
  }
  absl::StatusOr<std::unique_ptr<const ChatTemplate>> parsed = ChatTemplate::Parse(text);
  if (!parsed.ok()) return Annotate(parsed.status(), directory + ": chat template");
  return parsed;
}

}  // namespace penstock
