// The kernels as lazy MLX operations.
#pragma once

#include <optional>
#include <string>

#include "mlx/array.h"
#include "mlx/utils.h"

namespace pilotfish {

namespace mx = mlx::core;

// x (rows, k) float32 times the transpose of a packed (n, k) matrix -> (rows, n) float32.
mx::array qmm(const mx::array& x, const mx::array& w, const mx::array& scales, const std::optional<mx::array>& biases,
              int group, int bits, const std::string& mode, mx::StreamOrDevice s);

// added + x / rms(x) * weight over the last axis, float32; weight (dim) and added (as x) may be missing.
mx::array rms_norm(const mx::array& x, const std::optional<mx::array>& weight, float eps,
                   const std::optional<mx::array>& added, mx::StreamOrDevice s);

// gelu_tanh(gate) * up, float32, same shapes.
mx::array geglu(const mx::array& gate, const mx::array& up, mx::StreamOrDevice s);

// Half-split rotation of x (batch, rows, heads, dim) float32 -> (batch, heads, rows, dim); row i of batch b stands at
// offset[b] + i. frequencies (dim / 2) float32 are radians per position; pairs with 0 do not turn.
mx::array rope(const mx::array& x, const mx::array& offset, const mx::array& frequencies, mx::StreamOrDevice s);

// q (batch, heads, rows, dim), k and v (batch, kv_heads, slots, dim), mask (batch, 1, rows, slots) bool
// -> (batch, rows, heads * dim), float32.
mx::array attention(const mx::array& q, const mx::array& k, const mx::array& v, const mx::array& mask, float scale,
                    mx::StreamOrDevice s);

}  // namespace pilotfish
