/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One-sided transfers in C: the parent process owns memory, its child writes into it and says so.
 *
 *   cc examples/put_notify.c -I INCLUDE -L LIBRARY -lonehop -Wl,-rpath,LIBRARY -o put_notify
 *
 * INCLUDE and LIBRARY of an installed package: python -c "import onehop;
 * print(onehop.get_include(), onehop.get_library_dir())". Exits with 0 if all bytes were right.
 * Shown in docs/guides/one-sided.md.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "onehop/onehop.h"

enum { kSize = 1 << 20 };
static const int64_t kMinute = 60000000000; /* nanoseconds */

/* Ends the process with what the failed call says. */
static void check(oh_status status) {
  if (status == OH_OK) return;
  fprintf(stderr, "%s: %s\n", oh_status_name(status), oh_error_text());
  exit(1);
}

/* --8<-- [start:owner] */
/* `fd` is a pipe to the process that connects: addresses travel by whatever there is. */
static int own(int fd) {
  oh_endpoint* endpoint = NULL;
  check(oh_endpoint_create(NULL, &endpoint));
  char address[4096];
  size_t size = sizeof(address);
  check(oh_endpoint_address(endpoint, address, &size));
  if (write(fd, address, size) != (ssize_t)size || close(fd) != 0) return 1;
  oh_peer* peer = NULL;
  check(oh_endpoint_accept(endpoint, kMinute, &peer));

  unsigned char* memory = calloc(1, kSize);
  oh_region* region = NULL;
  check(oh_region_register(endpoint, memory, kSize, &region));
  char descriptor[1024];
  size = sizeof(descriptor);
  check(oh_region_descriptor(region, descriptor, &size));
  check(oh_peer_send(peer, descriptor, size, 0, NULL));

  char text[64];
  size = sizeof(text);
  check(oh_endpoint_wait_notification(endpoint, text, &size, NULL, kMinute));
  const int right = memory[0] == 7 && memory[kSize - 1] == 7;
  printf("%.*s: the bytes are %s\n", (int)size, text, right ? "right" : "WRONG");

  check(oh_region_deregister(region, kMinute)); /* now the memory is ours alone */
  oh_region_release(region);
  free(memory);
  oh_peer_release(peer);
  oh_endpoint_destroy(endpoint);
  return right ? 0 : 1;
}
/* --8<-- [end:owner] */

/* --8<-- [start:writer] */
static int write_there(int fd) {
  char address[4096];
  size_t size = 0;
  for (ssize_t got = 0; (got = read(fd, address + size, sizeof(address) - size)) > 0;) size += got;
  oh_endpoint* endpoint = NULL;
  oh_peer* peer = NULL;
  check(oh_endpoint_create(NULL, &endpoint));
  check(oh_endpoint_connect(endpoint, address, size, kMinute, &peer));

  char descriptor[1024];
  oh_message message = {.struct_size = sizeof(message)};
  check(oh_peer_recv(peer, descriptor, sizeof(descriptor), 0, NULL, &message));
  oh_remote_region* remote = NULL;
  check(oh_peer_attach(peer, descriptor, message.size, kMinute, &remote));

  unsigned char* data = malloc(kSize);
  memset(data, 7, kSize);
  const oh_put_options options = {
      .struct_size = sizeof(options), .notify = "1 MiB", .notify_size = 5};
  oh_request* request = NULL;
  check(oh_peer_put(peer, data, remote, 0, kSize, &options, &request));
  check(oh_request_wait(request, kMinute)); /* visible there; the notification follows */
  check(oh_request_message(request, &message));
  printf("put %zu bytes by %s\n", message.size, oh_path_name(message.path));

  oh_request_release(request);
  free(data);
  oh_remote_region_detach(remote);
  oh_peer_release(peer);
  oh_endpoint_destroy(endpoint);
  return 0;
}
/* --8<-- [end:writer] */

int main(void) {
  int fds[2];
  if (pipe(fds) != 0) return 1;
  /* Before any call of onehop: its objects do not outlive a fork. */
  const pid_t child = fork();
  if (child < 0) return 1;
  if (child == 0) {
    close(fds[1]);
    return write_there(fds[0]);
  }
  close(fds[0]);
  const int result = own(fds[1]);
  int status = 0;
  waitpid(child, &status, 0);
  return result != 0 || status != 0;
}
