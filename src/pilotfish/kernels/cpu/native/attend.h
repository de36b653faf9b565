// The steps of an attention layer between its projections.
#pragma once

#include <optional>

#include "operation.h"

namespace pilotfish {

// x / rms(x) * weight over the last axis; weight (dim) may be missing.
mx::array rms_norm(const mx::array& x, const std::optional<mx::array>& weight, float eps, mx::StreamOrDevice s);

// Splits x (batch, rows, (heads + kv_heads [+ kv_heads]) * dim) into queries, keys and values, norms each head, and turns
// queries and keys by their position, offset[b] + i. frequencies (dim / 2) float32 are radians per position, half-split.
// Without kv_heads there are queries only; with `shared` the values are the keys before norm and rotation.
// -> queries (batch, rows, heads, dim), keys and values (batch, kv_heads, rows, dim).
Arrays heads(const mx::array& x, const mx::array& q_weight, const std::optional<mx::array>& k_weight,
             const mx::array& offset, const mx::array& frequencies, int dim, int kv_heads, bool shared, float eps,
             mx::StreamOrDevice s);

// Copies of keys and values (batch, kv_heads, slots, dim) with `rows` new ones at slots (length[b] - start[b] + i), or
// that modulo `ring`. A buffer that nothing else needs is written in place.
Arrays write(const mx::array& keys, const mx::array& values, const mx::array& new_keys, const mx::array& new_values,
             const mx::array& length, const std::optional<mx::array>& start, int ring, mx::StreamOrDevice s);

// q (batch, rows, heads, dim) against keys and values that lie in a ring (batch, kv_heads, ring, dim), or in a run that
// begins at position `first` and, from start[b] on, in a tail. Row i stands at length[b] + i and sees `window` positions
// up to its own. -> (batch, rows, heads * dim) in q's dtype.
mx::array attention(const mx::array& q, const Arrays& keys, const Arrays& values, const mx::array& length,
                    const std::optional<mx::array>& start, int64_t first, int64_t window, bool ring, float scale,
                    mx::StreamOrDevice s);

// Bytes that `write` copied since the last call, of buffers that it could not write in place.
int64_t take_copied_bytes();

}  // namespace pilotfish
