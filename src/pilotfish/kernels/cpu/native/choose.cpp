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

float gumbel(const Choice& c, uint32_t position, uint32_t token) {
  uint32_t at = mix((position * 0x9e3779b9u) ^ c.words[0]);
  at = mix(at + c.words[1]);
  const uint32_t bits = mix(mix(at ^ token * 0x85ebca6bu));
  const float unit = (float(bits >> 9) + 0.5f) * 0x1p-23f;
  return -std::log(-std::log(unit));
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
      std::vector<float> x(size), wide;
      for (int at = begin; at < end; ++at) {
        const Choice& c = rows[at / n];
        const float* row = floats(in[0], at * size, size, wide);
        const int* named = tokens ? tokens + at * size : nullptr;
        int64_t best;
        if (c.temperature == 0 && suppress.empty()) {
          best = std::max_element(row, row + size) - row;
        } else {
          std::copy_n(row, size, x.data());
          for (int token : suppress) {
            if (!named && token < size) x[token] = NEVER;
            for (int64_t i = 0; named && i < size; ++i)
              if (named[i] == token) x[i] = NEVER;
          }
          const int position = in[1].data<int>()[at / n] + shift + at % n;
          best = c.temperature == 0 ? std::max_element(x.begin(), x.end()) - x.begin() : sampled(x, named, c, position);
        }
        out[0].data<int>()[at] = named ? named[best] : int(best);
      }
    });
  })[0];
}

}  // namespace pilotfish
