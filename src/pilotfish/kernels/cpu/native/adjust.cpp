#include "adjust.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "parallel.h"

namespace pilotfish {
namespace {

constexpr float NEVER = -std::numeric_limits<float>::infinity();

// How often each token stands in a window that moves over a sequence.
class Window {
 public:
  Window(int vocabulary, int size) : counts_(vocabulary), size_(size) {}

  void add(const std::vector<int>& sequence, int end) {
    if (const int token = sequence[end]; token >= 0 && counts_[token]++ == 0) seen_.push_back(token);
    if (const int gone = end - size_; gone >= 0 && sequence[gone] >= 0) --counts_[sequence[gone]];
  }

  int count(int token) const { return counts_[token]; }
  const std::vector<int>& seen() const { return seen_; }  // some may be gone or repeated

 private:
  std::vector<int> counts_, seen_;
  int size_;
};

float penalized(float x, int count, const Adjustment& a) {
  if (count == 0) return x;
  return (x > 0 ? x / a.repetition : x * a.repetition) - a.presence - a.frequency * count;
}

// One row: from `in` to `out`. names: the tokens of the logits, or null.
void adjust_row(const float* in, float* out, int64_t size, const int* names, const Adjustment& a, const Window& window,
                int position, bool open) {
  if (names) {
    for (int64_t j = 0; j < size; ++j) {
      out[j] = a.window ? penalized(in[j], window.count(names[j]), a) : in[j];
      for (const auto& [token, bias] : a.bias)
        if (token == names[j]) out[j] += bias;
    }
  } else {
    std::copy(in, in + size, out);
    for (int token : window.seen()) out[token] = penalized(in[token], window.count(token), a);
    for (const auto& [token, bias] : a.bias) out[token] += bias;
  }
  const bool closing = open && position >= a.closed_from;
  bool early = !a.ends.empty() && position < a.ends_from;
  const auto is_end = [&](int token) { return std::find(a.ends.begin(), a.ends.end(), token) != a.ends.end(); };
  if (early) {  // where a grammar has only an end left, it may come
    early = false;
    for (int64_t j = 0; j < size && !early; ++j) early = out[j] > NEVER && !is_end(names ? names[j] : int(j));
  }
  const auto barred = [&](int token) {
    return (closing && token != a.closes) ||
           (early && is_end(token));
  };
  if (early && !closing && !names)
    for (int token : a.ends) out[token] = NEVER;
  else if (early || closing)
    for (int64_t j = 0; j < size; ++j)
      if (barred(names ? names[j] : int(j))) out[j] = NEVER;
}

// The k largest of `row`, best first, equals by place.
std::vector<int> largest(const float* row, int64_t size, int k) {
  const auto better = [row](int a, int b) { return row[a] != row[b] ? row[a] > row[b] : a < b; };
  std::vector<int> heap;  // the best so far, the worst of them first
  for (int64_t j = 0; j < size; ++j) {
    if (int(heap.size()) < k) {
      heap.push_back(j);
      std::push_heap(heap.begin(), heap.end(), better);
    } else if (row[j] > row[heap.front()]) {
      std::pop_heap(heap.begin(), heap.end(), better);
      heap.back() = j;
      std::push_heap(heap.begin(), heap.end(), better);
    }
  }
  std::sort_heap(heap.begin(), heap.end(), better);
  return heap;
}

double log_sum_exp(const float* row, int64_t size) {
  const float most = *std::max_element(row, row + size);
  double parts[8] = {};
  int64_t j = 0;
  for (; j + 8 <= size; j += 8)
    for (int i = 0; i < 8; ++i) parts[i] += std::exp(row[j + i] - most);
  for (; j < size; ++j) parts[0] += std::exp(row[j] - most);
  double total = 0;
  for (double p : parts) total += p;
  return most + std::log(total);
}

}  // namespace

mx::array adjust(const mx::array& logits, const mx::array& tokens, const mx::array& open, const mx::array& drafts,
                 int first, const mx::array& length, const std::optional<mx::array>& ids,
                 const std::vector<Adjustment>& rows, int vocabulary, mx::StreamOrDevice s) {
  const int batch = logits.shape(0), n = logits.shape(1), width = tokens.shape(1), depth = drafts.shape(1);
  const int64_t size = logits.shape(2);
  Arrays inputs{logits, tokens, open, drafts, length};
  if (ids) inputs.push_back(*ids);
  const auto row_of = [=](const Arrays& in, float* out, int b) {
    const Adjustment& a = rows[b];
    const int* draft = in[3].data<int>() + int64_t(b) * depth;
    std::vector<int> sequence(in[1].data<int>() + int64_t(b) * width, in[1].data<int>() + int64_t(b + 1) * width);
    sequence.insert(sequence.end(), draft, draft + std::min(depth, first + n - 1));
    Window window(a.window ? vocabulary : 0, a.window);
    bool is_open = in[2].data<int>()[b];
    std::vector<float> wide;
    int upto = std::max(0, width - a.window);
    for (int i = 0; i < n; ++i) {
      const int end = width + first + i;
      for (; a.window && upto < end; ++upto) window.add(sequence, upto);
      for (int j = i == 0 ? 0 : first + i - 1; j < first + i; ++j)
        if (draft[j] == a.opens || draft[j] == a.closes) is_open = draft[j] == a.opens;
      const int64_t at = (int64_t(b) * n + i) * size;
      adjust_row(floats(in[0], at, size, wide), out + at, size, in.size() > 5 ? in[5].data<int>() + at : nullptr, a,
                 window, in[4].data<int>()[b] + 1 + first + i, is_open && a.opens >= 0);
    }
  };
  return operation("PilotfishAdjust", std::move(inputs), {{{batch, n, int(size)}, mx::float32}}, s,
                   [=](const Arrays& in, Arrays& out) {
                     parallel_for(batch, 1, [&](int begin, int end) {
                       for (int b = begin; b < end; ++b) row_of(in, out[0].data<float>(), b);
                     });
                   })[0];
}

Arrays advance(const mx::array& tokens, const mx::array& open, const mx::array& drafts, const mx::array& accepted,
               const std::vector<Adjustment>& rows, mx::StreamOrDevice s) {
  const int batch = tokens.shape(0), width = tokens.shape(1), n = drafts.shape(1);
  return operation("PilotfishAdvance", {tokens, open, drafts, accepted},
                   {{{batch, width}, mx::int32}, {{batch}, mx::int32}}, s, [=](const Arrays& in, Arrays& out) {
                     for (int b = 0; b < batch; ++b) {
                       const int* before = in[0].data<int>() + int64_t(b) * width;
                       const int* made = in[2].data<int>() + b * n;
                       const int taken = in[3].data<int>()[b] + 1, kept = std::max(0, width - taken);
                       int* after = std::copy(before + width - kept, before + width, out[0].data<int>() + int64_t(b) * width);
                       std::copy(made + taken - (width - kept), made + taken, after);
                       int is_open = in[1].data<int>()[b];
                       for (int j = 0; j < taken; ++j)
                         if (made[j] == rows[b].opens || made[j] == rows[b].closes) is_open = made[j] == rows[b].opens;
                       out[1].data<int>()[b] = is_open;
                     }
                   });
}

mx::array mask(const mx::array& logits, const mx::array& bits, const std::optional<mx::array>& ids,
               mx::StreamOrDevice s) {
  const int batch = logits.shape(0), n = logits.shape(1), words = bits.shape(2);
  const int64_t size = logits.shape(2);
  Arrays inputs{logits, bits};
  if (ids) inputs.push_back(*ids);
  return operation("PilotfishMask", std::move(inputs), {{{batch, n, int(size)}, mx::float32}}, s,
                   [=](const Arrays& in, Arrays& out) {
                     std::vector<float> wide;
                     for (int row = 0; row < batch * n; ++row) {
                       const float* from = floats(in[0], row * size, size, wide);
                       float* to = out[0].data<float>() + row * size;
                       const auto* allowed = in[1].data<uint32_t>() + int64_t(row) * words;
                       const int* names = in.size() > 2 ? in[2].data<int>() + row * size : nullptr;
                       for (int64_t j = 0; j < size; ++j) {
                         const int64_t token = names ? names[j] : j;
                         to[j] = allowed[token / 32] >> (token % 32) & 1 ? from[j] : NEVER;
                       }
                     }
                   })[0];
}

Arrays logprobs(const mx::array& logits, const mx::array& tokens, int k, mx::StreamOrDevice s) {
  const int batch = logits.shape(0), n = logits.shape(1);
  const int64_t size = logits.shape(2);
  return operation(
      "PilotfishLogprobs", {logits, tokens},
      {{{batch, n}, mx::float32}, {{batch, n, k}, mx::int32}, {{batch, n, k}, mx::float32}}, s,
      [=](const Arrays& in, Arrays& out) {
        parallel_for(batch * n, 1, [&](int begin, int end) {
          std::vector<float> wide;
          for (int row = begin; row < end; ++row) {
            const float* x = floats(in[0], row * size, size, wide);
            const double norm = log_sum_exp(x, size);
            out[0].data<float>()[row] = float(x[in[1].data<int>()[row]] - norm);
            if (k == 0) continue;
            const auto best = largest(x, size, k);
            for (int j = 0; j < k; ++j) {
              out[1].data<int>()[row * k + j] = best[j];
              out[2].data<float>()[row * k + j] = float(x[best[j]] - norm);
            }
          }
        });
      });
}

}  // namespace pilotfish
