#include "operation.h"

#include <memory>
#include <stdexcept>

#include "mlx/allocator.h"
#include "mlx/backend/cpu/encoder.h"
#include "mlx/ops.h"
#include "mlx/primitives.h"

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
        [body = body_, in = std::move(in), out = std::move(out)]() mutable { body(in, out); });
  }

  void eval_gpu(const Arrays&, Arrays&) override {
    throw std::runtime_error(std::string(name_) + " runs on a CPU stream only");
  }

  const char* name() const override { return name_; }

 private:
  const char* name_;
  std::vector<int> reuse_;
  Body body_;
};

// Whether `a` is sure to lie in memory row by row, so that no node has to make it so.
bool is_contiguous(const mx::array& a) {
  if (a.status() != mx::array::Status::unscheduled) return a.flags().row_contiguous;
  return a.has_primitive() && dynamic_cast<Operation*>(&a.primitive()) != nullptr;
}

}  // namespace

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
