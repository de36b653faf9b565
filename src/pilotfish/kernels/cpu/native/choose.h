// The choice of a token: `Sampler.choose` of sampling.py as one operation.
#pragma once

#include <optional>

#include "operation.h"

namespace pilotfish {

// How one row of a batch is sampled. temperature 0: greedy. top_k 0 and top_p 1 keep all; log_min_p may be -infinity.
struct Choice {
  float temperature, top_p, log_min_p;
  int top_k;
  uint32_t words[2];  // of seed and stream
};

// logits (batch, n, m) for the tokens at positions length[b] + shift ... -> (batch, n) int32. `ids` (batch, n, m) int32
// names the token of each logit; without it, logit j is token j. Tokens in `suppress` are never chosen.
mx::array choose(const mx::array& logits, const mx::array& length, int shift, const std::optional<mx::array>& ids,
                 const std::vector<Choice>& rows, const std::vector<int>& suppress, mx::StreamOrDevice s);

}  // namespace pilotfish
