/* SPDX-License-Identifier: Apache-2.0
 *
 * CuPy's allocator without a frame of Python code, which costs as much as an alloc: a function of the interpreter's C
 * interface around CuPy's own CFunctionAllocator.malloc. The interpreter's functions come by address, since this
 * library is linked with none.
 */
#ifndef WEIR_PYTHON_CUPY_ALLOC_H
#define WEIR_PYTHON_CUPY_ALLOC_H

#include "weir_cupy.h"

/* weir_cupy_malloc, which lets the function below know of a failure on the same thread: CuPy's memory objects can't
 * tell of one. */
WEIR_API void *weir_cupy_guarded_malloc(void *parameter, size_t bytes, int device);

/* Functions of the interpreter, by their names there. */
typedef struct weir_interpreter {
    void *(*PyCFunction_NewEx)(void *method, void *self, void *module);
    void *(*PyObject_CallOneArg)(void *callable, void *argument);
    void *(*PyTuple_GetItem)(void *tuple, intptr_t at);
    void (*Py_DecRef)(void *object);
} weir_interpreter;

/* A new reference to a function f(size) that returns malloc(size), or what handler(size) does where the alloc
 * failed: `pair` is the tuple (malloc, handler). NULL: with an exception set. Once an interpreter, with its lock. */
WEIR_API void *weir_cupy_allocator(const weir_interpreter *functions, void *pair);

#endif
