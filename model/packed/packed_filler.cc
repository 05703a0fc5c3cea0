#include "model/packed/packed_filler.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <xxhash.h>

#include <cstring>
#include <utility>

namespace penstock {
namespace {

using Part = v1::PackedWeights::Part;

// The parts of a question are what decides about the answer, beside checkpoint and options.
uint64_t QuestionOf(const std::string& text) { return XXH3_64bits(text.data(), text.size()); }

uint64_t QuestionOf(const MatrixPlan& plan) {
  std::string text = fmt::format("matrix {} {} {}", plan.outputs, plan.inputs, plan.stored_inputs);
  for (const MatrixPart& part : plan.parts) text += fmt::format(" {} {}", part.module, part.rows);
  return QuestionOf(text);
}
uint64_t WhetherMatrix(const std::string& module) { return QuestionOf("whether " + module); }
uint64_t TableOf(const std::string& name, int64_t rows, int64_t columns) {
  return QuestionOf(fmt::format("table {} {} {}", name, rows, columns));
}
uint64_t FloatsOf(const std::string& name, const std::vector<int64_t>& shape) {
  return QuestionOf(fmt::format("floats {} {}", name, fmt::join(shape, " ")));
}

size_t SizeOf(const std::vector<int64_t>& shape) {
  size_t size = sizeof(float);
  for (const int64_t extent : shape) size *= static_cast<size_t>(extent);
  return size;
}

void Describe(const QuantisedMatrix& matrix, Part& part) {
  part.set_outputs(matrix.outputs());
  part.set_inputs(matrix.inputs());
  v1::PackedWeights::Codes& codes = *part.mutable_codes();
  const QuantisedFormat& format = matrix.format();
  codes.set_type(static_cast<int32_t>(format.code));
  codes.set_bits(format.bits);
  codes.set_group(format.group);
  codes.set_zeros(format.zeros);
  codes.set_scale(static_cast<int32_t>(format.scale));
  codes.set_offsets(format.offsets);
  codes.mutable_order()->Add(matrix.order().begin(), matrix.order().end());
}

// The matrix of a part, without its panels.
QuantisedMatrix Described(const Part& part) {
  const v1::PackedWeights::Codes& codes = part.codes();
  const QuantisedFormat format{.code = static_cast<CodeType>(codes.type()),
                               .bits = codes.bits(),
                               .group = codes.group(),
                               .zeros = codes.zeros(),
                               .scale = static_cast<ScaleType>(codes.scale()),
                               .offsets = codes.offsets()};
  return QuantisedMatrix::WithoutPanels(part.outputs(), part.inputs(), format,
                                        {codes.order().begin(), codes.order().end()});
}

}  // namespace

absl::Status PackingFiller::Append(uint64_t question, std::span<const std::byte> bytes) {
  v1::PackedWeights::Answer& answer = *contents_.add_answers();
  answer.set_question(question);
  return writer_.Append(bytes, *answer.add_parts());
}

absl::StatusOr<WeightMatrix> PackingFiller::Matrix(const MatrixPlan& plan) {
  ASSIGN_OR_RETURN(const WeightMatrix matrix, from_.Matrix(plan));
  v1::PackedWeights::Answer& answer = *contents_.add_answers();
  answer.set_question(QuestionOf(plan));
  if (const PackedMatrix* packed = matrix.packed()) {
    Part& part = *answer.add_parts();
    part.set_outputs(packed->outputs());
    part.set_inputs(packed->inputs());
  }
  for (const QuantisedMatrix& section : matrix.quantised()) Describe(section, *answer.add_parts());
  int index = 0;
  for (const std::span<const std::byte> panels : matrix.memory()) {
    RETURN_IF_ERROR(writer_.Append(panels, *answer.mutable_parts(index++)));
  }
  // Panels are whole pages, so the parts follow each other.
  ASSIGN_OR_RETURN(std::byte* const mapped, writer_.Map(answer.parts(0), matrix.memory_bytes()));
  return matrix.Over(mapped);
}

bool PackingFiller::IsMatrix(const std::string& module) const {
  const bool yes = from_.IsMatrix(module);
  v1::PackedWeights::Answer& answer = *contents_.add_answers();
  answer.set_question(WhetherMatrix(module));
  answer.set_yes(yes);
  return yes;
}

absl::Status PackingFiller::Table(const std::string& name, int64_t rows, int64_t columns,
                                  Bf16* target) {
  RETURN_IF_ERROR(from_.Table(name, rows, columns, target));
  return Append(TableOf(name, rows, columns),
                std::as_bytes(std::span(target, static_cast<size_t>(rows * columns))));
}

absl::Status PackingFiller::Floats(const std::string& name, const std::vector<int64_t>& shape,
                                   float* target) {
  RETURN_IF_ERROR(from_.Floats(name, shape, target));
  return Append(FloatsOf(name, shape), {reinterpret_cast<const std::byte*>(target), SizeOf(shape)});
}

const v1::PackedWeights::Answer* PackedFiller::Next(uint64_t question) const {
  if (next_ >= file_.contents().answers_size()) return nullptr;
  const v1::PackedWeights::Answer& answer = file_.contents().answers(next_++);
  return answer.question() == question ? &answer : nullptr;
}

absl::StatusOr<WeightMatrix> PackedFiller::Matrix(const MatrixPlan& plan) {
  const v1::PackedWeights::Answer* answer = Next(QuestionOf(plan));
  if (answer == nullptr || answer->parts_size() == 0) {
    return file_.Error(fmt::format("has no matrix of {}", plan.parts[0].module));
  }
  WeightMatrix::Sections sections;
  for (const Part& part : answer->parts()) {
    const std::span<std::byte> bytes = file_.BytesOf(part);
    const auto fits = [&](const auto& matrix) { return matrix.memory_bytes() == bytes.size(); };
    const auto error = [&] {
      return file_.Error(fmt::format("has another matrix of {}", plan.parts[0].module));
    };
    if (!part.has_codes()) {
      const auto matrix = PackedMatrix::WithoutPanels(part.outputs(), part.inputs());
      if (!fits(matrix)) return error();
      return matrix.Over(Buffer::Over(bytes));
    }
    const QuantisedMatrix matrix = Described(part);
    if (!fits(matrix)) return error();
    sections.push_back(matrix.Over(Buffer::Over(bytes)));
  }
  return WeightMatrix(std::move(sections));
}

bool PackedFiller::IsMatrix(const std::string& module) const {
  const v1::PackedWeights::Answer* answer = Next(WhetherMatrix(module));
  return answer != nullptr && answer->yes();
}

absl::Status PackedFiller::Copy(uint64_t question, const std::string& name,
                                std::span<std::byte> target) {
  const v1::PackedWeights::Answer* answer = Next(question);
  if (answer == nullptr || answer->parts_size() != 1 || answer->parts(0).bytes() != target.size()) {
    return file_.Error("has no " + name);
  }
  const std::span<const std::byte> bytes = file_.BytesOf(answer->parts(0));
  if (!bytes.empty()) std::memcpy(target.data(), bytes.data(), bytes.size());
  return absl::OkStatus();
}

absl::Status PackedFiller::Table(const std::string& name, int64_t rows, int64_t columns,
                                 Bf16* target) {
  return Copy(TableOf(name, rows, columns), name,
              std::as_writable_bytes(std::span(target, static_cast<size_t>(rows * columns))));
}

absl::Status PackedFiller::Floats(const std::string& name, const std::vector<int64_t>& shape,
                                  float* target) {
  return Copy(FloatsOf(name, shape), name, {reinterpret_cast<std::byte*>(target), SizeOf(shape)});
}

}  // namespace penstock
