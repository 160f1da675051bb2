// SPDX-License-Identifier: Apache-2.0
//
// PyTorch's own exceptions, which C++ alone can throw: given to weir_torch_on_failure.
#include <cstdint>
#include <cstring>

#include <c10/util/Exception.h>

extern "C" void weir_torch_throw(const char *function, const char *file, uint32_t code, const char *text)
{
    c10::SourceLocation where = {function, file, code};
    if (std::strncmp(text, "CUDA out of memory", 18) == 0) throw c10::OutOfMemoryError(where, text);
    throw c10::Error(where, text);
}
