// What changes logits before a token is chosen, and what is said of them: one operation each.
#pragma once

#include <optional>

#include "operation.h"

namespace pilotfish {

// How the logits of one row of a batch are changed: `Adjustment` of operations.py.
struct Adjustment {
  float repetition, presence, frequency;
  int window;
  std::vector<std::pair<int, float>> bias;
  std::vector<int> ends;
  int ends_from, opens, closes, closed_from;
};

// logits (batch, n, m) for the tokens at positions length[b] + 1 + first ..., row i after `tokens` (batch, w) int32 and
// drafts[:, :first + i] -> float32 of the same shape. open (batch) int32: whether what `opens` begins is open after
// `tokens`. `ids` (batch, n, m) int32 names the token of each logit; without it, logit j is token j.
mx::array adjust(const mx::array& logits, const mx::array& tokens, const mx::array& open, const mx::array& drafts,
                 int first, const mx::array& length, const std::optional<mx::array>& ids,
                 const std::vector<Adjustment>& rows, int vocabulary, mx::StreamOrDevice s);

// `tokens` and `open` after a round that committed the first accepted[b] + 1 of drafts (batch, n) int32.
Arrays advance(const mx::array& tokens, const mx::array& open, const mx::array& drafts, const mx::array& accepted,
               const std::vector<Adjustment>& rows, mx::StreamOrDevice s);

// logits (batch, n, m) with those of forbidden tokens at minus infinity; bit t % 32 of word t / 32 of bits
// (batch, n, words) int32 allows token t. `ids` as above.
mx::array mask(const mx::array& logits, const mx::array& bits, const std::optional<mx::array>& ids,
               mx::StreamOrDevice s);

// Log probabilities of tokens (batch, n) int32 and of the k most likely, best first and equals by id:
// (batch, n) float32, ids (batch, n, k) int32, values (batch, n, k) float32.
Arrays logprobs(const mx::array& logits, const mx::array& tokens, int k, mx::StreamOrDevice s);

}  // namespace pilotfish
