#pragma once

#include "model/template/jinja_ast.h"

namespace penstock::jinja {

// Python's arithmetic; integers are 64 bits wide and fail where they would overflow.
Value Apply(Host& host, BinaryOp op, const Value& left, const Value& right);
bool Holds(Host& host, CompareOp op, const Value& left, const Value& right);
Value Negate(const Value& value);

struct SliceBounds {
  const Value* start = nullptr;  // null or None: not given
  const Value* stop = nullptr;
  const Value* step = nullptr;
};
Value TakeSlice(Host& host, const Value& object, const SliceBounds& bounds);
// object[index].
Value GetItem(const Value& object, const Value& index);

}  // namespace penstock::jinja
