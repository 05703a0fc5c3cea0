#pragma once

#include <string>

#include "router/request/served_model.h"

namespace penstock {

// A model whose token ids are bytes: 0 to 255, then <|im_start|>, <|im_end|> (the EOS). Its chat
// template is ChatML and knows the roles system, user and assistant.
inline constexpr uint32_t kTestImStart = 256;
inline constexpr uint32_t kTestImEnd = 257;
inline constexpr uint32_t kTestVocab = 258;

ServedModel MakeTestModel(uint32_t max_model_len = 2048);
ServedModel MakeTestModelWith(std::string_view chat_template, uint32_t max_model_len = 2048);

}  // namespace penstock
