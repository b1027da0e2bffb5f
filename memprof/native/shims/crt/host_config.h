// Stands for the header of the CUDA compiler's package, which torch does not bring along. Without
// that compiler (`__CUDACC__`) the runtime's headers take nothing from it but this one.
#pragma once
#include "crt/host_defines.h"
