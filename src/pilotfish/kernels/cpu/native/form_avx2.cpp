#define FORM avx2
#include "form.inl"
