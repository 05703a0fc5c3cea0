penstock_module(penstock_tokenizer
  SRCS bpe.cc bpe_parse.cc bpe_vocabulary.cc detokenizer.cc pre_tokenizer.cc stop_matcher.cc
       tokenizer.cc tokenizer_added.cc tokenizer_decoder.cc tokenizer_json.cc tokenizer_load.cc
       tokenizer_normalizer.cc tokenizer_post.cc tokenizer_regex.cc tokenizer_utf8.cc
  HDRS bpe.h bpe_vocabulary.h chat_template.h detokenizer.h pre_tokenizer.h stop_matcher.h
       tokenizer.h tokenizer_added.h tokenizer_decoder.h tokenizer_json.h tokenizer_normalizer.h
       tokenizer_parts.h tokenizer_post.h tokenizer_regex.h tokenizer_utf8.h
  DEPS penstock_base absl::flat_hash_map absl::flat_hash_set nlohmann_json::nlohmann_json PkgConfig::PCRE2 PkgConfig::UTF8PROC)
