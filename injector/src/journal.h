/* The process's journal: rare events, one JSON object a line. */
#ifndef KVTRACE_JOURNAL_H
#define KVTRACE_JOURNAL_H

#include <cstdint>

namespace kvtrace {

/* One line being built in a fixed buffer. A field that does not fit is left out, a long text is
 * cut: the line stays valid JSON. */
class JournalLine {
  public:
    explicit JournalLine(const char *event);
    JournalLine &add(const char *name, uint64_t value);
    JournalLine &add(const char *name, bool value);
    JournalLine &add(const char *name, const char *text);
    JournalLine &add_hex(const char *name, const void *handle);

  private:
    friend class Journal;
    void put(char character);
    void put_text(const char *text);
    bool put_name(const char *name, int value_length);

    /* Always left for the end of the line. */
    static constexpr int kRoom = 8;
    char text_[2048];
    int length_ = 0;
};

/* An append-only file; each line is a single write, so threads need no lock. */
class Journal {
  public:
    bool create(const char *path);
    void write(JournalLine &line) const;

  private:
    int file_ = -1;
};

} // namespace kvtrace

#endif
