// One kind of lazy MLX operation: its work is a function over evaluated, contiguous inputs and allocated outputs.
#pragma once

#include <functional>
#include <vector>

#include "forms.h"
#include "mlx/array.h"
#include "mlx/utils.h"

namespace pilotfish {

namespace mx = mlx::core;
using Arrays = std::vector<mx::array>;
using Body = std::function<void(const Arrays& inputs, Arrays& outputs)>;

struct Output {
  mx::Shape shape;
  mx::Dtype dtype;
  int reuse = -1;  // an input whose buffer the output takes over where nothing else needs it
};

// Outputs of `body` over `inputs`, as graph nodes on stream `s`.
Arrays operation(const char* name, Arrays inputs, std::vector<Output> outputs, mx::StreamOrDevice s, Body body);

// The same arrays as outputs of one node that does the work of all operations of this kind they are made by, one after
// the other: a node costs about ten microseconds, mostly for waking the thread that runs it. An operation whose result is
// needed elsewhere as well must be among `outputs`, or its work is done twice. Nothing is written in place inside.
Arrays fuse(const Arrays& outputs);

// Values put side by side along the last axis; the other axes agree.
mx::array concatenate(const Arrays& parts, mx::StreamOrDevice s);

DType dtype_of(const mx::array& a);  // throws std::invalid_argument for other than float32, bfloat16, float16

// The first element as bytes.
inline const uint8_t* bytes(const mx::array& a) { return a.data<uint8_t>(); }

// Scratch of floats, aligned to a cache line.
class Floats {
 public:
  explicit Floats(int64_t count) : storage_(count + 16) {
    auto address = reinterpret_cast<uintptr_t>(storage_.data());
    data_ = reinterpret_cast<float*>((address + 63) / 64 * 64);
  }
  float* data() { return data_; }

 private:
  std::vector<float> storage_;
  float* data_;
};

// `count` elements of `a` from element `from` on as floats: in place where they are floats, else converted into `scratch`.
const float* floats(const mx::array& a, int64_t from, int64_t count, std::vector<float>& scratch);

}  // namespace pilotfish
