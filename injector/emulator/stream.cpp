#include "driver.h"

kvtrace_emu_stream::kvtrace_emu_stream(kvtrace_emu_context *owner)
    : context(owner), thread_([this] { run(); }) {}

kvtrace_emu_stream::~kvtrace_emu_stream() {
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        is_stopping_ = true;
    }
    changed_.notify_all();
    thread_.join();
}

void kvtrace_emu_stream::push(std::function<void()> work) {
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        queue_.push_back(std::move(work));
    }
    changed_.notify_all();
}

void kvtrace_emu_stream::wait_idle() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return queue_.empty() && !is_busy_; });
}

void kvtrace_emu_stream::run() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
        changed_.wait(lock, [this] { return is_stopping_ || !queue_.empty(); });
        if (queue_.empty()) {
            return;
        }
        std::function<void()> work = std::move(queue_.front());
        queue_.pop_front();
        is_busy_ = true;
        lock.unlock();
        work();
        lock.lock();
        is_busy_ = false;
        changed_.notify_all();
    }
}
