penstock_module(penstock_tokenizer
  SRCS bpe.cc bpe_parse.cc bpe_vocabulary.cc chat_template.cc chat_template_load.cc detokenizer.cc
       jinja_expression_parser.cc jinja_filters.cc jinja_functions.cc jinja_interpreter.cc
       jinja_lexer.cc jinja_methods.cc jinja_operators.cc jinja_parser.cc jinja_print.cc
       jinja_sequence_filters.cc jinja_tests.cc jinja_text.cc jinja_value.cc pre_tokenizer.cc
       stop_matcher.cc tokenizer.cc tokenizer_added.cc tokenizer_decoder.cc tokenizer_json.cc
       tokenizer_load.cc tokenizer_normalizer.cc tokenizer_post.cc tokenizer_regex.cc
       tokenizer_utf8.cc
  HDRS bpe.h bpe_vocabulary.h chat_template.h detokenizer.h jinja_ast.h jinja_expression_parser.h
       jinja_filter_tables.h jinja_functions.h jinja_interpreter.h jinja_lexer.h jinja_operators.h
       jinja_parser.h jinja_text.h jinja_token_stream.h jinja_value.h pre_tokenizer.h
       stop_matcher.h tokenizer.h tokenizer_added.h tokenizer_decoder.h tokenizer_json.h
       tokenizer_normalizer.h tokenizer_parts.h tokenizer_post.h tokenizer_regex.h
       tokenizer_utf8.h
  DEPS penstock_base absl::flat_hash_map absl::flat_hash_set nlohmann_json::nlohmann_json
       PkgConfig::PCRE2 PkgConfig::UTF8PROC)
