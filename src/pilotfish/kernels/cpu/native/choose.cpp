#include "choose.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "parallel.h"

namespace pilotfish {
namespace {

constexpr float NEVER = -std::numeric_limits<float>::infinity();

// Chris Wellons' lowbias32.
uint32_t mix(uint32_t x) {
  x = (x ^ (x >> 16)) * 0x7feb352du;
  x = (x ^ (x >> 15)) * 0x846ca68bu;
  return x ^ (x >> 16);
}

float uniform(const Choice& c, uint32_t position, uint32_t token) {
  uint32_t at = mix((position * 0x9e3779b9u) ^ c.words[0]);
  at = mix(at + c.words[1]);
  const uint32_t bits = mix(mix(at ^ token * 0x85ebca6bu));
  return (float(bits >> 9) + 0.5f) * 0x1p-23f;
}

float gumbel(const Choice& c, uint32_t position, uint32_t token) {
  return -std::log(-std::log(uniform(c, position, token)));
}

// The k-th largest value, equals counted one by one; rows are long and k is small, so most blocks fail one comparison.
float kth_largest(const float* x, int64_t size, int k) {
  std::vector<float> heap;  // the k largest so far, the smallest of them first
  constexpr int BLOCK = 16;
  for (int64_t i = 0; i < size; i += BLOCK) {
    const int64_t end = std::min(size, i + BLOCK);
    if (int(heap.size()) == k) {
      bool any = false;
      for (int64_t j = i; j < end; ++j) any |= x[j] > heap.front();
      if (!any) continue;
    }
    for (int64_t j = i; j < end; ++j) {
      if (int(heap.size()) < k) {
        heap.push_back(x[j]);
        std::push_heap(heap.begin(), heap.end(), std::greater<>());
      } else if (x[j] > heap.front()) {
        std::pop_heap(heap.begin(), heap.end(), std::greater<>());
        heap.back() = x[j];
        std::push_heap(heap.begin(), heap.end(), std::greater<>());
      }
    }
  }
  return heap.front();
}

// The smallest value that top-k, then top-p over what is left, then min-p keep.
float threshold(const float* x, int64_t size, const Choice& c) {
  const float most = *std::max_element(x, x + size);
  float least = most + c.log_min_p;
  const float at_k = c.top_k > 0 && c.top_k < size ? kth_largest(x, size, c.top_k) : NEVER;
  least = std::max(least, at_k);
  if (c.top_p >= 1) return least;
  std::vector<float> kept;
  for (int64_t i = 0; i < size; ++i)
    if (x[i] >= at_k && x[i] > NEVER) kept.push_back(x[i]);
  std::sort(kept.begin(), kept.end(), std::greater<>());
  double total = 0, before = 0;
  for (float v : kept) total += std::exp(double(v) - most);
  float smallest = most;
  for (float v : kept) {
    if (before >= c.top_p * total) break;
    smallest = v;
    before += std::exp(double(v) - most);
  }
  return std::max(least, smallest);
}

int64_t sampled(std::vector<float>& x, const int* ids, const Choice& c, int position) {
  for (auto& v : x) v /= c.temperature;
  const float least = threshold(x.data(), x.size(), c);
  int64_t best = -1;
  float most = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    if (!(x[i] >= least)) continue;
    const float score = x[i] + gumbel(c, position, ids ? ids[i] : i);
    if (best < 0 || score > most) best = i, most = score;
  }
  return std::max<int64_t>(best, 0);
}

// `size` logits as floats, with those of the tokens in `suppress` at minus infinity.
void suppressed(std::vector<float>& x, const float* row, int64_t size, const int* ids, const std::vector<int>& suppress) {
  x.assign(row, row + size);
  for (int token : suppress) {
    if (!ids && token < size) x[token] = NEVER;
    for (int64_t i = 0; ids && i < size; ++i)
      if (ids[i] == token) x[i] = NEVER;
  }
}

// What a row of logits is drawn from: the tokens that survive the filters, with probabilities that sum to one.
using Distribution = std::vector<std::pair<int, float>>;

Distribution distribution(std::vector<float>& x, const int* ids, const Choice& c) {
  const auto named = [&](size_t i) { return ids ? ids[i] : int(i); };
  if (c.temperature == 0) return {{named(std::max_element(x.begin(), x.end()) - x.begin()), 1.0f}};
  for (auto& v : x) v /= c.temperature;
  const float least = threshold(x.data(), x.size(), c), most = *std::max_element(x.begin(), x.end());
  Distribution out;
  double total = 0;
  for (size_t i = 0; i < x.size(); ++i)
    if (x[i] >= least && x[i] > NEVER) {
      out.push_back({named(i), std::exp(x[i] - most)});
      total += out.back().second;
    }
  for (auto& [token, p] : out) p = float(p / total);
  return out;
}

float probability(const Distribution& d, int token) {
  for (const auto& [t, p] : d)
    if (t == token) return p;
  return 0;
}

// A token drawn from weights that need not sum to one; -1 where none is above zero.
int drawn(const Distribution& weights, const Choice& c, int position) {
  int best = -1;
  float most = 0;
  for (const auto& [token, w] : weights) {
    if (!(w > 0)) continue;
    const float score = std::log(w) + gumbel(c, position, token);
    if (best < 0 || score > most) best = token, most = score;
  }
  return best;
}

// max(p - q, 0), or p where that is zero everywhere: a rejection is a rounding accident then.
int drawn_instead(const Distribution& p, const Distribution& q, const Choice& c, int position, int vocabulary) {
  std::vector<float> offered(vocabulary);
  for (const auto& [token, chance] : q) offered[token] = chance;
  Distribution left = p;
  for (auto& [token, chance] : left) chance -= offered[token];
  const int token = drawn(left, c, position);
  return token >= 0 ? token : drawn(p, c, position);
}

}  // namespace

mx::array choose(const mx::array& logits, const mx::array& length, int shift, const std::optional<mx::array>& ids,
                 const std::vector<Choice>& rows, const std::vector<int>& suppress, mx::StreamOrDevice s) {
  const int batch = logits.shape(0), n = logits.shape(1);
  const int64_t size = logits.shape(2);
  Arrays inputs{logits, length};
  if (ids) inputs.push_back(*ids);
  return operation("PilotfishChoose", std::move(inputs), {{{batch, n}, mx::int32}}, s, [=](const Arrays& in, Arrays& out) {
    const int* tokens = in.size() > 2 ? in[2].data<int>() : nullptr;
    parallel_for(batch * n, size > (1 << 11) ? 1 : batch * n, [&](int begin, int end) {
      std::vector<float> x, wide;
      for (int at = begin; at < end; ++at) {
        const Choice& c = rows[at / n];
        const float* row = floats(in[0], at * size, size, wide);
        const int* named = tokens ? tokens + at * size : nullptr;
        int64_t best;
        if (c.temperature == 0 && suppress.empty()) {
          best = std::max_element(row, row + size) - row;
        } else {
          suppressed(x, row, size, named, suppress);
          const int position = in[1].data<int>()[at / n] + shift + at % n;
          best = c.temperature == 0 ? std::max_element(x.begin(), x.end()) - x.begin() : sampled(x, named, c, position);
        }
        out[0].data<int>()[at] = named ? named[best] : int(best);
      }
    });
  })[0];
}

Arrays reject(const mx::array& logits, const mx::array& length, const mx::array& drafts, const Arrays& offered,
              const Arrays& ids, const std::vector<Choice>& text, const std::vector<Choice>& accept,
              const std::vector<int>& suppress, mx::StreamOrDevice s) {
  const int batch = logits.shape(0), depth = drafts.shape(1), vocabulary = logits.shape(2);
  Arrays inputs{logits, length, drafts};
  inputs.insert(inputs.end(), offered.begin(), offered.end());
  inputs.insert(inputs.end(), ids.begin(), ids.end());
  const bool named = !ids.empty();
  const auto judge = [=](const Arrays& in, int b, int* tokens) {
    std::vector<float> x, wide;
    const auto of = [&](const mx::array& from, int64_t row, const int* names) {
      const int64_t size = from.shape(-1);
      suppressed(x, floats(from, row * size, size, wide), size, names, suppress);
      return distribution(x, names, text[b]);
    };
    const int first = in[1].data<int>()[b] + 1;
    for (int j = 0; j < depth; ++j) {
      const int token = in[2].data<int>()[b * depth + j];
      const mx::array& offer = in[3 + j];
      const auto p = of(in[0], b * (depth + 1) + j, nullptr);
      const auto q = of(offer, b, named ? in[3 + depth + j].data<int>() + int64_t(b) * offer.shape(-1) : nullptr);
      // u * q < p instead of u < p / q: no division by zero, and p = 0 is never accepted.
      tokens[j] = token;
      if (uniform(accept[b], first + j, 0) * probability(q, token) < probability(p, token)) continue;
      tokens[j] = drawn_instead(p, q, text[b], first + j, vocabulary);
      return j;
    }
    tokens[depth] = drawn(of(in[0], b * (depth + 1) + depth, nullptr), text[b], first + depth);
    return depth;
  };
  return operation("PilotfishReject", std::move(inputs), {{{batch, depth + 1}, mx::int32}, {{batch}, mx::int32}}, s,
                   [=](const Arrays& in, Arrays& out) {
                     parallel_for(batch, 1, [&](int begin, int end) {
                       for (int b = begin; b < end; ++b) {
                         int* tokens = out[0].data<int>() + b * (depth + 1);
                         std::fill_n(tokens, depth + 1, 0);
                         out[1].data<int>()[b] = judge(in, b, tokens);
                       }
                     });
                   });
}

}  // namespace pilotfish
