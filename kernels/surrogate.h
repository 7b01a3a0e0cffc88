/*
 * Surrogate derivatives: what stands in for the derivative of the spike in the adjoint. Each is a
 * function of u = h - theta and at most four parameters p[0..3], finite for every finite u (the
 * forms below only ever overflow into a denominator or into the exponent of exp).
 *
 * To add one: a function here and a row in RV_SURROGATE_LIST. The row names the function, the
 * closed form (shown by `list`), where it comes from, and RV_P(index, name, default, least, most)
 * for each parameter, RV_P_ABOVE where the lower limit itself is excluded.
 */
#ifndef RV_SURROGATE_H
#define RV_SURROGATE_H

#include "kernels/kernels.h"
#include "kernels/real.h"

#define RV_SURROGATE_LIST(X)                                                                       \
    X(atan, "alpha/2 / (1 + (pi/2 alpha u)^2)", "Fang et al. 2021; SpikingJelly, snnTorch",        \
      RV_P_ABOVE(0, "alpha", 2.0, 0, 1e6))                                                         \
    X(fast_sigmoid, "1 / (1 + slope |u|)^2", "Zenke, Ganguli 2018; snnTorch, Norse (slope 1)",     \
      RV_P_ABOVE(0, "slope", 25.0, 0, 1e6))                                                        \
    X(fast_sigmoid_window, "1 / (1 + slope |u|)^2 where |u| < width, else 0", "s3gd",              \
      RV_P_ABOVE(0, "slope", 100.0, 0, 1e6) RV_P_ABOVE(1, "width", 0.2, 0, 1e6))                   \
    X(sigmoid, "alpha s (1 - s), s = 1 / (1 + exp(-alpha u))",                                     \
      "SpikingJelly, snnTorch (alpha 25)", RV_P_ABOVE(0, "alpha", 4.0, 0, 1e6))                    \
    X(triangle, "alpha max(0, 1 - slope |u|)", "Bellec et al. 2018; Norse",                        \
      RV_P_ABOVE(0, "alpha", 0.3, 0, 1e6) RV_P_ABOVE(1, "slope", 1.0, 0, 1e6))                     \
    X(piecewise_quadratic, "alpha - alpha^2 |u| where |u| <= 1/alpha, else 0",                     \
      "Esser et al. 2016; SpikingJelly", RV_P_ABOVE(0, "alpha", 1.0, 0, 1e6))                      \
    X(piecewise_exp, "alpha/2 exp(-alpha |u|)", "Neftci et al. 2019; SpikingJelly",                \
      RV_P_ABOVE(0, "alpha", 1.0, 0, 1e6))                                                         \
    X(softsign, "alpha / (2 (1 + alpha |u|)^2)", "SpikingJelly SoftSign",                          \
      RV_P_ABOVE(0, "alpha", 2.0, 0, 1e6))                                                         \
    X(superspike, "alpha / (1 + |u|)^2", "SpikingJelly SuperSpike",                                \
      RV_P_ABOVE(0, "alpha", 1.0, 0, 1e6))                                                         \
    X(erf, "alpha/sqrt(pi) exp(-alpha^2 u^2)", "Esser et al. 2015; SpikingJelly",                  \
      RV_P_ABOVE(0, "alpha", 2.0, 0, 1e6))                                                         \
    X(erfc, "2/sqrt(pi) exp(-alpha^2 u^2)", "Norse heavi_erfc",                                    \
      RV_P_ABOVE(0, "alpha", 1.0, 0, 1e6))                                                         \
    X(gaussian, "scale N(u; mu, sigma)", "Yin et al. 2021; sinabs Gaussian",                       \
      RV_P_ABOVE(0, "sigma", 0.5, 0, 1e6) RV_P(1, "mu", 0.0, -1e6, 1e6)                            \
          RV_P_ABOVE(2, "scale", 1.0, 0, 1e6))                                                     \
    X(multi_gaussian,                                                                              \
      "scale ((1+h) N(u; 0, sigma) - h N(u; sigma, s sigma) - h N(u; -sigma, s sigma))",           \
      "Yin et al. 2021; sinabs MultiGaussian",                                                     \
      RV_P_ABOVE(0, "sigma", 0.5, 0, 1e6) RV_P(1, "h", 0.15, 0, 1e3)                               \
          RV_P_ABOVE(2, "s", 6.0, 0, 1e3) RV_P_ABOVE(3, "scale", 1.0, 0, 1e6))                     \
    X(boxcar, "height where |u| < width/2, else 0", "Kaiser et al. 2020; Spyx",                    \
      RV_P_ABOVE(0, "height", 1.0, 0, 1e6) RV_P_ABOVE(1, "width", 1.0, 0, 1e6))                    \
    X(rect, "alpha where |u| < 1/(2 alpha), else 0", "SpikingJelly Rect",                          \
      RV_P_ABOVE(0, "alpha", 1.0, 0, 1e6))                                                         \
    X(piecewise_leaky_relu, "1/(2 w) where |u| < w, else c", "SpikingJelly",                       \
      RV_P_ABOVE(0, "w", 1.0, 0, 1e6) RV_P(1, "c", 0.01, 0, 1e6))                                  \
    X(leaky_k_relu, "k where u >= 0, else leak", "SpikingJelly LeakyKReLU",                        \
      RV_P(0, "leak", 0.0, -1e6, 1e6) RV_P(1, "k", 1.0, -1e6, 1e6))                                \
    X(q_pseudo_spike, "(1 + 2 |u| / (alpha - 1))^-alpha", "Herranz-Celotti, Rouat 2022",           \
      RV_P_ABOVE(0, "alpha", 2.0, 1, 1e3))                                                         \
    X(single_exponential, "scale/width exp(-|u|/width)", "Shrestha, Orchard 2018; sinabs, lava",   \
      RV_P_ABOVE(0, "width", 0.5, 0, 1e6) RV_P_ABOVE(1, "scale", 1.0, 0, 1e6))                     \
    X(periodic_exponential,                                                                        \
      "scale exp(-|d|/width), d = u below 0, else the distance to the nearest half period",        \
      "sinabs PeriodicExponential",                                                                \
      RV_P_ABOVE(0, "width", 0.5, 0, 1e6) RV_P_ABOVE(1, "scale", 1.0, 0, 1e6)                      \
          RV_P_ABOVE(2, "period", 1.0, 0, 1e6))                                                    \
    X(tanh, "1 - tanh(alpha u)^2", "Norse, Spyx", RV_P_ABOVE(0, "alpha", 1.0, 0, 1e6))             \
    X(circ, "alpha^3 / (alpha^2 + u^2)^1.5", "Norse circ", RV_P_ABOVE(0, "alpha", 0.5, 0, 1e6))    \
    X(arctan, "1 / (pi (1 + (pi slope u)^2))", "Spyx arctan", RV_P_ABOVE(0, "slope", 2.0, 0, 1e6)) \
    X(straight_through, "1", "Bengio et al. 2013; snnTorch", RV_P_NONE)                            \
    X(heaviside, "1 where u > 0, else 0", "snnTorch Heaviside", RV_P_NONE)                         \
    X(step, "height where u >= -window, else 0", "sinabs Heaviside; Rockpool StepPWL",             \
      RV_P_ABOVE(0, "height", 1.0, 0, 1e6) RV_P(1, "window", 1.0, -1e6, 1e6))                      \
    X(sign, "-height where u >= 0, else height", "snnTorch triangular",                            \
      RV_P_ABOVE(0, "height", 1.0, 0, 1e6))                                                        \
    X(sfs, "1 / (1 + slope |u|)^2 where u > from, else 0", "snnTorch SFS",                         \
      RV_P_ABOVE(0, "slope", 25.0, 0, 1e6) RV_P(1, "from", 1.0, -1e6, 1e6))                        \
    X(spike_rate_escape, "slope exp(-beta |u - 1|)", "Wulfram et al. 2014; snnTorch",              \
      RV_P_ABOVE(0, "beta", 1.0, 0, 1e6) RV_P_ABOVE(1, "slope", 25.0, 0, 1e6))                     \
    X(s2nn, "alpha s (1 - s) below 0, beta / (1 + u) above; s = 1 / (1 + exp(-alpha u))",          \
      "Suetake et al. 2022; SpikingJelly",                                                         \
      RV_P_ABOVE(0, "alpha", 4.0, 0, 1e6) RV_P_ABOVE(1, "beta", 1.0, 0, 1e6))                      \
    X(nonzero_sign_log_abs, "alpha / (1 + alpha |u|)", "SpikingJelly",                             \
      RV_P_ABOVE(0, "alpha", 1.0, 0, 1e6))                                                         \
    X(log_tailed_relu, "leak below 0, 1 up to u = 1, 1/u above", "Cai et al. 2017; SpikingJelly",  \
      RV_P(0, "leak", 0.0, -1e6, 1e6))                                                             \
    X(fake_numerical, "min(1/|u|, alpha)", "SpikingJelly FakeNumericalGradient",                   \
      RV_P_ABOVE(0, "alpha", 0.3, 0, 1e6))

#define RV_SURROGATE_ENUM(name, form, source, parameters) RV_SURROGATE_##name,
enum { RV_SURROGATE_LIST(RV_SURROGATE_ENUM) RV_SURROGATES };
#undef RV_SURROGATE_ENUM

#define RV_C(x) ((rv_real)(x)) /* a constant in the number type */

/* e / (1 + e)^2 with e = exp(-|x|): the sigmoid's derivative without overflow */
static RV_HD rv_real rv_bell(rv_real x) {
    rv_real e = rv_exp(-rv_abs(x)), d = RV_C(1) + e;
    return e / (d * d);
}
static RV_HD rv_real rv_normal(rv_real u, rv_real mu, rv_real sigma) {
    rv_real z = (u - mu) / sigma;
    return rv_exp(RV_C(-0.5) * z * z) * (RV_C(0.39894228040143267794) / sigma);
}
static RV_HD rv_real rv_hyperbola(rv_real slope, rv_real u) { /* 1 / (1 + slope |u|)^2 */
    rv_real d = rv_fma(slope, rv_abs(u), RV_C(1));
    return RV_C(1) / (d * d);
}

static RV_HD rv_real rv_surrogate_atan(rv_real u, const rv_real *p) {
    rv_real z = RV_C(1.57079632679489661923) * p[0] * u;
    return RV_C(0.5) * p[0] / rv_fma(z, z, RV_C(1));
}
static RV_HD rv_real rv_surrogate_fast_sigmoid(rv_real u, const rv_real *p) {
    return rv_hyperbola(p[0], u);
}
static RV_HD rv_real rv_surrogate_fast_sigmoid_window(rv_real u, const rv_real *p) {
    return rv_abs(u) < p[1] ? rv_hyperbola(p[0], u) : RV_C(0);
}
static RV_HD rv_real rv_surrogate_sigmoid(rv_real u, const rv_real *p) {
    return p[0] * rv_bell(p[0] * u);
}
static RV_HD rv_real rv_surrogate_triangle(rv_real u, const rv_real *p) {
    return p[0] * rv_max(RV_C(0), rv_fma(-p[1], rv_abs(u), RV_C(1)));
}
static RV_HD rv_real rv_surrogate_piecewise_quadratic(rv_real u, const rv_real *p) {
    return rv_max(RV_C(0), rv_fma(-p[0] * p[0], rv_abs(u), p[0]));
}
static RV_HD rv_real rv_surrogate_piecewise_exp(rv_real u, const rv_real *p) {
    return RV_C(0.5) * p[0] * rv_exp(-p[0] * rv_abs(u));
}
static RV_HD rv_real rv_surrogate_softsign(rv_real u, const rv_real *p) {
    return RV_C(0.5) * p[0] * rv_hyperbola(p[0], u);
}
static RV_HD rv_real rv_surrogate_superspike(rv_real u, const rv_real *p) {
    return p[0] * rv_hyperbola(RV_C(1), u);
}
static RV_HD rv_real rv_surrogate_erf(rv_real u, const rv_real *p) {
    rv_real z = p[0] * u;
    return RV_C(0.56418958354775628695) * p[0] * rv_exp(-z * z);
}
static RV_HD rv_real rv_surrogate_erfc(rv_real u, const rv_real *p) {
    rv_real z = p[0] * u;
    return RV_C(1.12837916709551257390) * rv_exp(-z * z);
}
static RV_HD rv_real rv_surrogate_gaussian(rv_real u, const rv_real *p) {
    return p[2] * rv_normal(u, p[1], p[0]);
}
static RV_HD rv_real rv_surrogate_multi_gaussian(rv_real u, const rv_real *p) {
    rv_real wide = p[2] * p[0];
    rv_real side = rv_normal(u, p[0], wide) + rv_normal(u, -p[0], wide);
    return p[3] * rv_fma(RV_C(1) + p[1], rv_normal(u, RV_C(0), p[0]), -p[1] * side);
}
static RV_HD rv_real rv_surrogate_boxcar(rv_real u, const rv_real *p) {
    return rv_abs(u) < RV_C(0.5) * p[1] ? p[0] : RV_C(0);
}
static RV_HD rv_real rv_surrogate_rect(rv_real u, const rv_real *p) {
    return rv_abs(u) < RV_C(0.5) / p[0] ? p[0] : RV_C(0);
}
static RV_HD rv_real rv_surrogate_piecewise_leaky_relu(rv_real u, const rv_real *p) {
    return rv_abs(u) < p[0] ? RV_C(0.5) / p[0] : p[1];
}
static RV_HD rv_real rv_surrogate_leaky_k_relu(rv_real u, const rv_real *p) {
    return u >= 0 ? p[1] : p[0];
}
static RV_HD rv_real rv_surrogate_q_pseudo_spike(rv_real u, const rv_real *p) {
    /* the bound keeps the logarithm's argument finite; the power is 0 long before it */
    rv_real z = rv_min(RV_C(2) * (rv_abs(u) / (p[0] - RV_C(1))), RV_C(1e37));
    return rv_exp(-p[0] * rv_log(RV_C(1) + z));
}
static RV_HD rv_real rv_surrogate_single_exponential(rv_real u, const rv_real *p) {
    return p[1] / p[0] * rv_exp(-rv_abs(u) / p[0]);
}
static RV_HD rv_real rv_surrogate_periodic_exponential(rv_real u, const rv_real *p) {
    rv_real above = p[2] * rv_fma(RV_C(2), rv_frac(u / p[2] + RV_C(0.5)), RV_C(-1));
    rv_real d = u < 0 ? u : above;
    return p[1] * rv_exp(-rv_abs(d) / p[0]);
}
static RV_HD rv_real rv_surrogate_tanh(rv_real u, const rv_real *p) {
    return RV_C(4) * rv_bell(RV_C(2) * p[0] * u);
}
static RV_HD rv_real rv_surrogate_circ(rv_real u, const rv_real *p) {
    rv_real z = u / p[0], d = rv_fma(z, z, RV_C(1));
    return RV_C(1) / (d * rv_sqrt(d));
}
static RV_HD rv_real rv_surrogate_arctan(rv_real u, const rv_real *p) {
    rv_real z = RV_C(3.14159265358979323846) * p[0] * u;
    return RV_C(0.31830988618379067154) / rv_fma(z, z, RV_C(1));
}
static RV_HD rv_real rv_surrogate_straight_through(rv_real u, const rv_real *p) {
    (void)u, (void)p;
    return RV_C(1);
}
static RV_HD rv_real rv_surrogate_heaviside(rv_real u, const rv_real *p) {
    (void)p;
    return u > 0 ? RV_C(1) : RV_C(0);
}
static RV_HD rv_real rv_surrogate_step(rv_real u, const rv_real *p) {
    return u >= -p[1] ? p[0] : RV_C(0);
}
static RV_HD rv_real rv_surrogate_sign(rv_real u, const rv_real *p) {
    return u >= 0 ? -p[0] : p[0];
}
static RV_HD rv_real rv_surrogate_sfs(rv_real u, const rv_real *p) {
    return u > p[1] ? rv_hyperbola(p[0], u) : RV_C(0);
}
static RV_HD rv_real rv_surrogate_spike_rate_escape(rv_real u, const rv_real *p) {
    return p[1] * rv_exp(-p[0] * rv_abs(u - RV_C(1)));
}
static RV_HD rv_real rv_surrogate_s2nn(rv_real u, const rv_real *p) {
    rv_real below = p[0] * rv_bell(p[0] * u), above = p[1] / (RV_C(1) + rv_max(u, RV_C(0)));
    return u < 0 ? below : above;
}
static RV_HD rv_real rv_surrogate_nonzero_sign_log_abs(rv_real u, const rv_real *p) {
    return p[0] / rv_fma(p[0], rv_abs(u), RV_C(1));
}
static RV_HD rv_real rv_surrogate_log_tailed_relu(rv_real u, const rv_real *p) {
    return u > 0 ? RV_C(1) / rv_max(u, RV_C(1)) : p[0];
}
static RV_HD rv_real rv_surrogate_fake_numerical(rv_real u, const rv_real *p) {
    return p[0] / rv_max(RV_C(1), p[0] * rv_abs(u));
}

/* One row by its number; for loops over many units prefer one loop per row. */
static RV_HD rv_real rv_surrogate_slope(int kind, rv_real u, const rv_real *p) {
    switch (kind) {
#define RV_SURROGATE_CASE(name, form, source, parameters)                                          \
    case RV_SURROGATE_##name:                                                                      \
        return rv_surrogate_##name(u, p);
        RV_SURROGATE_LIST(RV_SURROGATE_CASE)
#undef RV_SURROGATE_CASE
    }
    return RV_C(0);
}

#endif
