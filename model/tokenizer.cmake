penstock_module(penstock_tokenizer
  HDRS chat_template.h detokenizer.h stop_matcher.h tokenizer.h
  DEPS penstock_base nlohmann_json::nlohmann_json PkgConfig::PCRE2 PkgConfig::UTF8PROC)
