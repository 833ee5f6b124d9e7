"""Where a run's recalls are answered from: the in-process replica, exact; later a bank store that mirrors it."""
