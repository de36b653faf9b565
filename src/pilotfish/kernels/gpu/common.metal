// Weight formats: eight neighbouring weights of a row as floats. Formats as in __init__.py: 0 integers, 1 e2m1, 2 e4m3,
// 3 dense. Explicit fma everywhere: what is fused must not depend on how many rows a kernel was compiled for.

CONSTANT float E2M1[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};

METAL_FUNC float from_e4m3(uint code) {
  const float magnitude = as_type<float>((code & 0x7fu) << 20) * 0x1p120f;  // subnormals included
  return code & 0x80u ? -magnitude : magnitude;
}

METAL_FUNC float from_e8m0(uint code) { return as_type<float>(code ? code << 23 : 0x00400000u); }

// Eight codes of BITS bits that begin with weight `first` of a row of `words` words; never reads past the row.
template <int BITS>
METAL_FUNC u64 codes_at(const DEVICE uint32_t* row, int words, int first) {
  const int bit = first * BITS, word = bit / 32;
  u64 both = row[word];
  if (bit % 32 + 8 * BITS > 32 && word + 1 < words) both |= u64(row[word + 1]) << 32;
  return both >> (bit % 32);
}

template <int FORMAT, int BITS>
METAL_FUNC void unpack(const DEVICE uint32_t* row, int words, int first, THREAD float* out) {
  const u64 codes = codes_at<BITS>(row, words, first);
  for (int i = 0; i < 8; ++i) {
    const uint code = uint(codes >> (i * BITS)) & ((1u << BITS) - 1u);
    if (FORMAT == 1) {
      out[i] = code & 8u ? -E2M1[code & 7u] : E2M1[code & 7u];
    } else if (FORMAT == 2) {
      out[i] = from_e4m3(code);
    } else {
      out[i] = float(code);
    }
  }
}
