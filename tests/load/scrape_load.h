// What a scrape of many jobs takes, and whether calls notice it.
#pragma once

namespace sparsebalance::load {

// Prints a table; returns the exit code.
int Scrape(int jobs);

}  // namespace sparsebalance::load
