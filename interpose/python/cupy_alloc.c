/* SPDX-License-Identifier: Apache-2.0 */
#include "cupy_alloc.h"

#include <stdbool.h>

static _Thread_local bool has_failed;
static weir_interpreter python;

void *weir_cupy_guarded_malloc(void *parameter, size_t bytes, int device)
{
    void *block = weir_cupy_malloc(parameter, bytes, device);
    if (block == NULL && bytes > 0) has_failed = true;
    return block;
}

/* Python's METH_O. */
static void *alloc(void *pair, void *size)
{
    has_failed = false; /* others may call the guarded one, too */
    void *pointer = python.PyObject_CallOneArg(python.PyTuple_GetItem(pair, 0), size);
    if (pointer == NULL || !has_failed) return pointer;
    python.Py_DecRef(pointer);
    return python.PyObject_CallOneArg(python.PyTuple_GetItem(pair, 1), size);
}

void *weir_cupy_allocator(const weir_interpreter *functions, void *pair)
{
    enum { METHOD_ONE_OBJECT = 8 }; /* METH_O */
    static struct {                 /* PyMethodDef, of the stable interface */
        const char *name;
        void *(*function)(void *, void *);
        int flags;
        const char *doc;
    } method = {"malloc", alloc, METHOD_ONE_OBJECT, "A MemoryPointer. cupy.cuda.memory.OutOfMemoryError."};
    python = *functions;
    return python.PyCFunction_NewEx(&method, pair, NULL);
}
