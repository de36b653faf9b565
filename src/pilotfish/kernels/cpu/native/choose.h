// `Sampler.choose` and `Sampler.reject` of sampling.py, as one operation each.
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

// Drafts (batch, depth) int32, each drawn from `offered` (batch, 1, m) logits, against the target's logits
// (batch, depth + 1, v) for the positions from length[b] + 1 on -> tokens (batch, depth + 1) int32, accepted (batch)
// int32. `ids` name the offered logits' tokens, or it is empty. `text` and `accept`: the rows, by stream of noise.
Arrays reject(const mx::array& logits, const mx::array& length, const mx::array& drafts, const Arrays& offered,
              const Arrays& ids, const std::vector<Choice>& text, const std::vector<Choice>& accept,
              const std::vector<int>& suppress, mx::StreamOrDevice s);

}  // namespace pilotfish
