"""Dense agreement as the papers write it: plain NumPy, float64, one process that plays all trainers."""

import numpy as np


def kstep_adam(start, gradients, k, rate, beta1=0.0, beta2=0.999, epsilon=1e-8, warm_up=0, decay=0.0):
    """Zhao et al., Algorithm 2. `gradients(t, i, x)` of trainer i at step t, None: it has no example and makes no step;
    yields all x after each step, [N, d]. `decay`: of the weights."""
    count, size = start.shape
    x, m = start.astype(np.float64), np.zeros((count, size))
    v_own, v = np.full((count, size), epsilon), np.full(size, epsilon)
    t = 0
    while True:
        t += 1
        found = [gradients(t, i, x[i]) for i in range(count)]
        works = np.array([each is not None for each in found])[:, None]
        g = np.array([np.zeros(size) if each is None else each + decay * x[i] for i, each in enumerate(found)])
        m = np.where(works, beta1 * m + (1 - beta1) * g, m)
        v_own = np.where(works, beta2 * v_own + (1 - beta2) * g**2, v_own)
        if t % k != 0 and t > warm_up:
            x = x - works * rate * m / np.sqrt(v)
        else:
            v = v_own.mean(0)
            x = np.broadcast_to((x - works * rate * m / np.sqrt(v)).mean(0), x.shape).copy()
        yield x


class Easgd:
    """Zheng et al., Algorithm 2: each trainer by itself with the sync server's w_ps."""

    def __init__(self, start, alpha):
        self.w_ps, self.alpha = start.astype(np.float64), alpha

    def exchange(self, w):
        """The first line of the loop, with the replica as it is read; returns what travels back."""
        self.w_ps = (1 - self.alpha) * self.w_ps + self.alpha * w
        return self.w_ps

    def interpolate(self, w, received):
        """The second line, with the replica as it is by now."""
        return (1 - self.alpha) * w + self.alpha * received


class Ma:
    """Zheng et al., Algorithm 3: all trainers together."""

    def __init__(self, start, alpha):
        self.alpha = alpha

    def exchange(self, copies):
        return np.mean(copies, 0)

    def interpolate(self, w, received):
        return (1 - self.alpha) * w + self.alpha * received


class Bmuf:
    """Zheng et al., Algorithm 4; momentum and Nesterov on the descent direction."""

    def __init__(self, start, alpha, eta, momentum=0.0, nesterov=False):
        self.w_global, self.velocity = start.astype(np.float64), np.zeros(start.shape)
        self.alpha, self.eta, self.momentum, self.nesterov = alpha, eta, momentum, nesterov

    def exchange(self, copies):
        d = np.mean(copies, 0) - self.w_global
        self.velocity = self.momentum * self.velocity + d
        step = d + self.momentum * self.velocity if self.nesterov else self.velocity
        self.w_global = self.w_global + self.eta * step
        return self.w_global

    def interpolate(self, w, received):
        return (1 - self.alpha) * w + self.alpha * received
