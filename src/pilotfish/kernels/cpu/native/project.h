// Matrix products of a few rows, with what stands before and after them in a decoder layer.
#pragma once

#include <optional>
#include <string>

#include "operation.h"

namespace pilotfish {

// Weights as MLX stores them: dense (n, k), or packed with scales and maybe biases. `bits` 0 means dense.
struct Weights {
  mx::array w;
  std::optional<mx::array> scales, biases;
  int group, bits;
  std::string mode;
  std::optional<mx::array> global_scale;  // one, or one for each expert: nvfp4's, in units of 1 / 2688
};

// What stands around the products.
struct Around {
  std::optional<mx::array> norm;   // (k): rows of x are normed with this weight first
  float eps = 0;                   // of both norms; 0 and no weight: no norm first
  bool gated = false;              // two matrices, gate and up: gelu(x gate) * (x up)
  std::optional<mx::array> times;  // one matrix: gelu(x w) * times[..., part, :], times being (..., parts, n)
  int part = 0;
  std::optional<mx::array> residual, after, scale;  // (residual + norm(out) * after) * scale (1)
  float cap = 0;                   // tanh(out / cap) * cap
};

// x (..., k) times the transposes of the matrices -> (..., sum of n), in x's dtype, sums in float32.
mx::array project(const mx::array& x, const std::vector<Weights>& matrices, const Around& around, mx::StreamOrDevice s);

// x (rows, k), or (rows, picks, k), times the matrices of a stack (experts, n, k) that indices (rows, picks) name
// -> (rows, picks, n). Rows that name the same expert share its unpacked weights.
mx::array gather(const mx::array& x, const mx::array& indices, const Weights& stack, mx::StreamOrDevice s);

// Rows of a matrix that ids (...) name, times `scale` -> (..., k) in `dtype`.
mx::array lookup(const mx::array& ids, const Weights& table, int k, float scale, mx::Dtype dtype, mx::StreamOrDevice s);

// Gemma 4's inputs of each layer: (rms_norm(projected * scale, weight) + own) * factor, both (batch, rows, layers * width)
// -> (batch, rows, layers, width).
mx::array blend(const mx::array& projected, const mx::array& own, const mx::array& weight, float eps, float scale,
                float factor, mx::StreamOrDevice s);

}  // namespace pilotfish
