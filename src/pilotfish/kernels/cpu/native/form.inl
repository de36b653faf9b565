// Everything that is compiled once per instruction set; FORM names the set.
#include "attention.inl"
#include "elementwise.inl"
#include "matmul.inl"

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)
#define JOINED(a, b) a##b
#define VARIABLE(name) JOINED(name, _form)

namespace pilotfish {

const Form VARIABLE(FORM){TEXT(FORM),       FORM::packed_size, FORM::pack,      FORM::matmul,
                          FORM::unpack,     FORM::norm,       FORM::geglu,       FORM::softcap,   FORM::rotate,
                          FORM::to_floats,  FORM::from_floats, FORM::attention_block, FORM::join};

}  // namespace pilotfish
