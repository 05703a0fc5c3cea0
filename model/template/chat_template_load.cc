#include "model/gguf/model_text.h"
#include "model/template/chat_template.h"
#include "model/tokenizer/tokenizer_json.h"

namespace penstock {
namespace {

// chat_template is a string, or a list of {"name", "template"}.
absl::StatusOr<std::string> TemplateOf(const JsonField& field) {
  if (!field.is_array()) return field.String();
  for (size_t i = 0; i < field.size(); ++i) {
    ASSIGN_OR_RETURN(const std::string name, field[i]["name"].String());
    if (name == "default") return field[i]["template"].String();
  }
  return InvalidArgument("{} has no template named \"default\"", field.path());
}

absl::StatusOr<std::string> ReadFromConfig(const std::string& model) {
  constexpr char kFile[] = "tokenizer_config.json";
  const absl::StatusOr<std::string> file = ReadModelText(model, kFile);
  if (!file.ok() && !absl::IsNotFound(file.status())) return file.status();
  if (file.ok()) {
    const std::string path = fmt::format("{}/{}", model, kFile);
    ASSIGN_OR_RETURN(const nlohmann::json config, ParseJson(*file, path));
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
      model);
}

}  // namespace

absl::StatusOr<std::unique_ptr<const ChatTemplate>> LoadChatTemplate(const std::string& model) {
  absl::StatusOr<std::string> text = ReadModelText(model, "chat_template.jinja");
  if (absl::IsNotFound(text.status())) text = ReadFromConfig(model);
  RETURN_IF_ERROR(text.status());
  absl::StatusOr<std::unique_ptr<const ChatTemplate>> parsed = ChatTemplate::Parse(*text);
  if (!parsed.ok()) return Annotate(parsed.status(), model + ": chat template");
  return parsed;
}

}  // namespace penstock
