/*
 * From Python 3.12 on, an object can be immortal (PEP 683): it is used without being counted, that is, without being
 * written to. So the page it lies in stays that of the file, which all processes share.
 *
 * Every object that can be reached from those that the collector knows becomes so. A restored program never frees one
 * of them anyway.
 */
#include "dump.h"

#if PY_VERSION_HEX < 0x030c0000
void make_immortal(void)
{
}
#else
#include <internal/pycore_typeobject.h>
#include <stdlib.h>

#define SEEN_SIZE (1UL << 21)

static PyObject **seen, **pending;
static size_t seen_count, pending_count, pending_room;

static int visit(PyObject *object, void *unused)
{
    size_t at = ((unsigned long)object >> 4) * 0x9E3779B97F4A7C15UL >> 43;

    (void)unused;
    if (!object)
        return 0;
    for (; seen[at]; at = (at + 1) % SEEN_SIZE)
        if (seen[at] == object)
            return 0;
    if (++seen_count > SEEN_SIZE / 2)
        fail("more than %lu objects", SEEN_SIZE / 2);
    seen[at] = object;
    if (pending_count == pending_room) {
        pending_room = pending_room ? 2 * pending_room : 1 << 16;
        pending = realloc(pending, pending_room * sizeof *pending);
        if (!pending)
            fail("no memory for %zu objects", pending_room);
    }
    pending[pending_count++] = object;
    return 0;
}

/* What a type's own function for the collector leaves out. */
static void visit_parts(PyObject *object)
{
    PyObject *key, *value;
    Py_ssize_t position = 0;

    if (PyCode_Check(object)) {
        PyCodeObject *code = (PyCodeObject *)object;
        PyObject *const parts[] = {code->co_consts, code->co_names, code->co_exceptiontable, code->co_localsplusnames,
                                   code->co_localspluskinds, code->co_filename, code->co_name, code->co_qualname,
                                   code->co_linetable};
        for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
            visit(parts[i], NULL);
    } else if (PyDict_Check(object)) {
        /* Keys that are strings only are left out. */
        while (PyDict_Next(object, &position, &key, &value)) {
            visit(key, NULL);
            visit(value, NULL);
        }
    } else if (PyType_Check(object) && !PyType_HasFeature((PyTypeObject *)object, Py_TPFLAGS_HEAPTYPE)) {
        PyTypeObject *type = (PyTypeObject *)object;
        PyObject *dictionary = _PyType_GetDict(type);
        visit(dictionary, NULL);
        visit(type->tp_mro, NULL);
        visit(type->tp_bases, NULL);
        visit((PyObject *)type->tp_base, NULL);
        return;
    }
    if (Py_TYPE(object)->tp_traverse)
        Py_TYPE(object)->tp_traverse(object, visit, NULL);
}

void make_immortal(void)
{
    PyObject *collector = PyImport_ImportModule("gc"), *roots;

    seen = calloc(SEEN_SIZE, sizeof *seen);
    if (!seen || !collector)
        fail("cannot make objects immortal");
    roots = PyObject_CallMethod(collector, "get_objects", NULL);
    if (!roots)
        fail("cannot list objects");
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(roots); i++)
        visit(PyList_GET_ITEM(roots, i), NULL);
    while (pending_count) {
        PyObject *object = pending[--pending_count];
        if (PyFrame_Check(object))
            continue;
        Py_SET_REFCNT(object, _Py_IMMORTAL_REFCNT);
        visit((PyObject *)Py_TYPE(object), NULL);
        visit_parts(object);
    }
    Py_SET_REFCNT(roots, 1);
    Py_DECREF(roots);
}
#endif
