// The call library in one unit: most of the time to compile it is that of torch's headers.

#include "autograd.cpp"
#include "method.cpp"
#include "update.cpp"

#include "document.cpp"

#include "python.cpp"
