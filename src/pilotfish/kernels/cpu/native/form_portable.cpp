#define FORM portable
#include "kernels.inl"

namespace pilotfish {
const Form portable_form{"portable", portable::qmm, portable::norm, portable::geglu, portable::attention};
}
