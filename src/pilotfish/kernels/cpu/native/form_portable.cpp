#define FORM portable
#include "form.inl"
