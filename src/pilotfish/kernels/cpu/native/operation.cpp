#include "operation.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <unordered_map>

#include "mlx/allocator.h"
#include "mlx/backend/cpu/encoder.h"
#include "mlx/ops.h"
#include "mlx/primitives.h"
#include "profile.h"

namespace pilotfish {
namespace {

class Operation : public mx::Primitive {
 public:
  Operation(mx::Stream stream, const char* name, std::vector<int> reuse, Body body)
      : Primitive(stream), name_(name), reuse_(std::move(reuse)), body_(std::move(body)) {}

  void eval_cpu(const Arrays& inputs, Arrays& outputs) override {
    Arrays in, out;
    for (size_t i = 0; i < outputs.size(); ++i) {
      const int j = reuse_[i];
      if (j >= 0 && inputs[j].is_donatable() && inputs[j].flags().row_contiguous) {
        outputs[i].copy_shared_buffer(inputs[j]);
      } else {
        outputs[i].set_data(mx::allocator::malloc(outputs[i].nbytes()));
      }
      out.push_back(mx::array::unsafe_weak_copy(outputs[i]));
    }
    for (const auto& input : inputs) in.push_back(mx::array::unsafe_weak_copy(input));
    mx::cpu::get_command_encoder(stream()).dispatch(
        [name = name_, body = body_, in = std::move(in), out = std::move(out)]() mutable {
          const Span span(name);
          body(in, out);
        });
  }

  void eval_gpu(const Arrays&, Arrays&) override {
    throw std::runtime_error(std::string(name_) + " runs on a CPU stream only");
  }

  const char* name() const override { return name_; }

  const Body& body() const { return body_; }

 private:
  const char* name_;
  std::vector<int> reuse_;
  Body body_;
};

constexpr const char* PROGRAM = "PilotfishProgram";

// The operation of ours that an array is still to be computed by, if any.
Operation* operation_of(const mx::array& a) {
  return a.status() == mx::array::Status::unscheduled && a.has_primitive() ? dynamic_cast<Operation*>(&a.primitive())
                                                                            : nullptr;
}

// Whether `a` is sure to lie in memory row by row, so that no node has to make it so.
bool is_contiguous(const mx::array& a) {
  if (a.status() != mx::array::Status::unscheduled) return a.flags().row_contiguous;
  return operation_of(a) != nullptr;
}

// Programs are not taken apart again.
bool can_fuse(const mx::array& a) {
  const auto* op = operation_of(a);
  return op && op->name() != PROGRAM;
}

// Operations in order, over slots: first the arrays from outside, then what each step makes.
class Program {
 public:
  // The slot of an array, after a step for everything that it is made of.
  int slot(const mx::array& a) {
    if (auto found = slots_.find(a.id()); found != slots_.end()) return found->second;
    if (!can_fuse(a)) {
      outside.push_back(a);
      return slots_[a.id()] = -int(outside.size());
    }
    const auto* op = operation_of(a);
    Step step{op->name(), op->body(), {}, made_, {}, {}};
    for (const auto& input : a.inputs()) step.inputs.push_back(slot(input));
    step.first = made_;
    for (const auto& output : a.outputs()) {
      slots_[output.id()] = made_++;
      step.outputs.push_back({output.shape(), output.dtype()});
    }
    steps_.push_back(std::move(step));
    return slots_[a.id()];
  }

  void run(const Arrays& given, Arrays& wanted, const std::vector<int>& wanted_slots) const {
    std::vector<std::optional<mx::array>> made(made_);
    for (size_t i = 0; i < wanted.size(); ++i)
      if (wanted_slots[i] >= 0) made[wanted_slots[i]] = wanted[i];
    Arrays in, out;
    for (size_t i = 0; i < steps_.size(); ++i) {
      const Step& step = steps_[i];
      in.clear(), out.clear();
      for (int slot : step.inputs) in.push_back(slot < 0 ? given[-slot - 1] : *made[slot]);
      for (size_t j = 0; j < step.outputs.size(); ++j) {
        auto& output = made[step.first + j];
        if (!output) {
          output = mx::array(step.outputs[j].shape, step.outputs[j].dtype, nullptr, {});
          output->set_data(mx::allocator::malloc(output->nbytes()));
        }
        out.push_back(*output);
      }
      {
        const Span span(step.name);
        step.body(in, out);
      }
      for (int slot : step.last_used) made[slot].reset();
    }
  }

  // Notes after which step each slot is free again.
  void finish() {
    std::vector<int> last(made_);
    for (size_t i = 0; i < steps_.size(); ++i) {
      for (int slot : steps_[i].inputs)
        if (slot >= 0) last[slot] = i;
      for (size_t j = 0; j < steps_[i].outputs.size(); ++j) last[steps_[i].first + j] = i;
    }
    for (int slot = 0; slot < made_; ++slot) steps_[last[slot]].last_used.push_back(slot);
  }

  Arrays outside;

 private:
  struct Step {
    const char* name;
    Body body;
    std::vector<int> inputs;
    int first;
    std::vector<Output> outputs;
    std::vector<int> last_used;
  };
  std::vector<Step> steps_;
  std::unordered_map<std::uintptr_t, int> slots_;
  int made_ = 0;
};

}  // namespace

Arrays fuse(const Arrays& outputs) {
  auto program = std::make_shared<Program>();
  std::vector<int> slots;
  std::vector<Output> kinds;
  Arrays ours;
  for (const auto& a : outputs) {
    if (!can_fuse(a)) continue;
    slots.push_back(program->slot(a));
    kinds.push_back({a.shape(), a.dtype()});
    ours.push_back(a);
  }
  if (ours.empty()) return outputs;
  program->finish();
  const auto stream = ours[0].primitive().stream();
  Arrays made = operation(PROGRAM, program->outside, kinds, stream, [program, slots](const Arrays& in, Arrays& out) {
    program->run(in, out, slots);
  });
  Arrays all;
  size_t next = 0;
  for (const auto& a : outputs) all.push_back(can_fuse(a) ? made[next++] : a);
  return all;
}

mx::array concatenate(const Arrays& parts, mx::StreamOrDevice s) {
  auto shape = parts[0].shape();
  shape.back() = 0;
  for (const auto& part : parts) shape.back() += part.shape(-1);
  const int64_t rows = std::max<int64_t>(1, parts[0].size() / std::max(1, parts[0].shape(-1)));
  return operation("PilotfishConcatenate", parts, {{shape, parts[0].dtype()}}, s, [rows](const Arrays& in, Arrays& out) {
    uint8_t* to = out[0].data<uint8_t>();
    for (int64_t r = 0; r < rows; ++r)
      for (const auto& part : in) {
        const int64_t width = part.nbytes() / rows;
        std::memcpy(to, bytes(part) + r * width, width);
        to += width;
      }
  })[0];
}

Arrays operation(const char* name, Arrays inputs, std::vector<Output> outputs, mx::StreamOrDevice s, Body body) {
  for (auto& input : inputs)
    if (!is_contiguous(input)) input = mx::contiguous(input, false, s);
  std::vector<mx::Shape> shapes;
  std::vector<mx::Dtype> dtypes;
  std::vector<int> reuse;
  for (auto& output : outputs) {
    shapes.push_back(std::move(output.shape));
    dtypes.push_back(output.dtype);
    reuse.push_back(output.reuse);
  }
  auto primitive = std::make_shared<Operation>(mx::to_stream(s), name, std::move(reuse), std::move(body));
  return mx::array::make_arrays(std::move(shapes), dtypes, primitive, inputs);
}

DType dtype_of(const mx::array& a) {
  if (a.dtype() == mx::float32) return DType::f32;
  if (a.dtype() == mx::bfloat16) return DType::bf16;
  if (a.dtype() == mx::float16) return DType::f16;
  throw std::invalid_argument("the CPU kernels compute with float32, bfloat16 and float16 only");
}

const float* floats(const mx::array& a, int64_t from, int64_t count, std::vector<float>& scratch) {
  const DType type = dtype_of(a);
  if (type == DType::f32) return a.data<float>() + from;
  scratch.resize(count);
  form().to_floats(type, bytes(a) + from * 2, count, scratch.data());
  return scratch.data();
}

}  // namespace pilotfish
