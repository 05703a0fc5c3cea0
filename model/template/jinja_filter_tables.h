#pragma once

#include <vector>

#include "model/template/jinja_functions.h"

namespace penstock::jinja {

// The filters, in two tables; FindFilter searches both.
const std::vector<Builtin>& ValueFilters();     // jinja_filters.cc
const std::vector<Builtin>& SequenceFilters();  // jinja_sequence_filters.cc

}  // namespace penstock::jinja
