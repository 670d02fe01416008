"""What a job costs: the price table, the bill, and the answer to `builder job cost`."""
