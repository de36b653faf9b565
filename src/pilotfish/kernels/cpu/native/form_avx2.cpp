#define FORM avx2
#include "kernels.inl"

namespace pilotfish {
const Form avx2_form{"avx2", avx2::qmm, avx2::norm, avx2::geglu, avx2::attention};
}
