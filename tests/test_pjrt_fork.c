/* SPDX-License-Identifier: Apache-2.0
 *
 * The hook in a child of fork: its threads are gone, and its locks and lists are as they were in the middle of things.
 */
#include "forks.h"
#include "pjrt_world.h"

#include <sys/wait.h>

#define MIB ((size_t)1 << 20)

enum { CHILD_SECONDS = 60 };

/* The plug-in's function is called once, and what it says comes back; here it is made to fail before it asks for a
 * device, which a child has none of. */
static bool reaches_the_plug_in(int place, void *args)
{
    unsigned calls = mini.calls[place];
    mini_fail(place, 0);
    struct pjrt_error *error = call(place, args);
    return error && mini.calls[place] == calls + 1;
}

/* True: all is left to the plug-in, and nothing waits for what the parent was doing. */
static bool is_left_alone(struct pjrt_buffer *held)
{
    unsigned char host[100] = {0};
    int64_t dims[1] = {sizeof host};
    struct pjrt_from_host up = from_args(0, host, U8, dims, 1);
    struct pjrt_to_host down = {.struct_size = sizeof down, .from = held, .to = malloc(MIB), .to_bytes = MIB};
    struct pjrt_copy_to_memory over = {
        .struct_size = sizeof over, .from = held, .memory = &device(1)->memory};
    struct pjrt_executable takes = {.donated = 1};
    struct pjrt_buffer *const list[1] = {held}, *const *const lists[1] = {list};
    struct pjrt_execute run = {.struct_size = sizeof run,
        .executable = &takes,
        .arguments = lists,
        .n_devices = 1,
        .n_arguments = 1};
    struct pjrt_one end = {.struct_size = sizeof end, .subject = client},
                    drop_held = {.struct_size = sizeof end, .subject = held};
    bool right = reaches_the_plug_in(PJRT_CLIENT_BUFFER_FROM_HOST_BUFFER, &up);
    right &= reaches_the_plug_in(PJRT_BUFFER_TO_HOST_BUFFER, &down);
    right &= reaches_the_plug_in(PJRT_BUFFER_COPY_TO_MEMORY, &over);
    right &= reaches_the_plug_in(PJRT_LOADED_EXECUTABLE_EXECUTE, &run);
    right &= reaches_the_plug_in(PJRT_BUFFER_DESTROY, &drop_held);
    right &= reaches_the_plug_in(PJRT_CLIENT_DESTROY, &end);
    free(down.to);
    return right && weir_pjrt_install(mini.api) == 1 && strstr(weir_pjrt_message(), "fork");
}

static int wait_for(pid_t child)
{
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}

static void test_a_child_of_a_process_with_a_client_is_left_to_the_plug_in_and_ends(void **state)
{
    (void)state;
    char text[4096];
    stall(0);
    struct pjrt_buffer *from = mini_computed(device(0), U8, MIB, 2);
    struct pjrt_buffer *to =
        copy_to_memory(from, &device(1)->memory); /* holds `from`, and a worker is to come */
    pid_t child = fork();
    if (child == 0) {
        alarm(CHILD_SECONDS); /* waiting for ever is wrong, too */
        bool right = is_left_alone(from);
        right &= weir_pjrt_status(text, sizeof text) > 0 && strstr(text, "\"installed\": false");
        _exit(right ? 0 : 1);
    }
    assert_int_equal(wait_for(child), 0);
    let_go(0); /* the parent goes on */
    await(to);
    uint64_t before = served(WR_PJRT_FROM_HOST);
    struct pjrt_buffer *b = put_bytes(0, 1000, 3);
    assert_bytes(b, 3);
    assert_int_equal(served(WR_PJRT_FROM_HOST), before + 1);
    destroy(b);
    destroy(from);
    destroy(to);
}

/* By way of the handlers of exit: no thread that they could wait for is left. */
static void test_a_child_exits(void **state)
{
    (void)state;
    destroy(put_bytes(0, MIB, 1));
    stall(0);
    struct pjrt_buffer *from = mini_computed(device(0), U8, MIB, 2);
    struct pjrt_buffer *to = copy_to_memory(from, &device(1)->memory);
    pid_t child = fork();
    if (child == 0) {
        alarm(CHILD_SECONDS);
        exit(0);
    }
    assert_int_equal(wait_for(child), 0);
    let_go(0);
    await(to);
    destroy(from);
    destroy(to);
}

static void test_a_child_of_a_process_without_a_client_may_hook_its_own(void **state)
{
    (void)state;
    pid_t child = fork();
    if (child == 0) {
        alarm(CHILD_SECONDS);
        pjrt_function hooked = mini.api->entries[PJRT_CLIENT_DESTROY];
        bool right = hooked != wr_pjrt_hook.original[PJRT_CLIENT_DESTROY];
        _exit(right && weir_pjrt_install(mini.api) == 0 ? 0 : 1);
    }
    assert_int_equal(wait_for(child), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_child_of_a_process_without_a_client_may_hook_its_own),
        HOOKED(test_a_child_of_a_process_with_a_client_is_left_to_the_plug_in_and_ends),
        HOOKED(test_a_child_exits),
    };
    install_in_miniature("64M");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
