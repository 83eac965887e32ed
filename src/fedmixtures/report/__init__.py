"""The report: one page that shows whether listening to neighbours helped, and whom."""
