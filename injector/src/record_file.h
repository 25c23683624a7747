/* One .kvt file: a header whose counters stay true, then records. */
#ifndef KVTRACE_RECORD_FILE_H
#define KVTRACE_RECORD_FILE_H

#include <cstddef>

#include "kvtrace_abi.h"

namespace kvtrace {

/*
 * Plain pwrite, no mapping: what was written survives a SIGKILL just the same, and a full disk is
 * an error code here where a store into a mapped page would end the engine with SIGBUS. Used by one
 * thread at a time.
 */
class RecordFile {
  public:
    /* Create the file with mode 0600. `header` gives the constant fields. False: errno says why. */
    bool create(const char *path, const kvtrace_file_header &header);

    /* Append whole records. A short write keeps the file whole and returns false (errno). */
    bool append(const void *records, size_t count);

    /* Set the drop counter and flag bits; `write_header` makes them visible. */
    void set_dropped(uint64_t count);
    void add_flags(uint32_t flags);
    void remove_flags(uint32_t flags);
    void set_failure(uint32_t site, uint32_t result);

    /* Write the header if something changed since the last time. */
    bool write_header();

    uint64_t record_count() const { return header_.record_count; }
    bool is_open() const { return file_ >= 0; }

  private:
    int file_ = -1;
    bool changed_ = false;
    kvtrace_file_header header_ = {};
};

} // namespace kvtrace

#endif
