#pragma once

#include "model/template/jinja_ast.h"

namespace penstock::jinja {

// Python's arithmetic. Integers have 64 bits; an overflow throws Error.
Value Apply(Host& host, BinaryOp op, const Value& left, const Value& right);
bool Holds(Host& host, CompareOp op, const Value& left, const Value& right);
Value Negate(const Value& value);

// The bounds of object[start:stop:step].
struct SliceBounds {
  const Value* start = nullptr;  // null or None: omitted
  const Value* stop = nullptr;
  const Value* step = nullptr;
};
Value TakeSlice(Host& host, const Value& object, const SliceBounds& bounds);
// Returns object[index].
Value GetItem(const Value& object, const Value& index);

}  // namespace penstock::jinja
