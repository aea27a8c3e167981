package hooks_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gradpress/gradpress/compress"
	"github.com/gradpress/gradpress/ddp"
	"github.com/gradpress/gradpress/hooks"
	"github.com/gradpress/gradpress/kernels"
)

// lateRigs are ranks with a delay around a method.
func lateRigs(t testing.TB, ctx context.Context, size int, dev kernels.Device, params []ddp.Param, text string, d hooks.Delay, set func(*hooks.Config, *ddp.Config)) ([]*rig, []*hooks.Delayed) {
	late := make([]*hooks.Delayed, size)
	d.Dev = dev
	return rigsOf(t, size, dev, params, set, func(r int, cfg hooks.Config) (ddp.Hook, error) {
		e, err := hooks.Compressed(ctx, cfg, method(t, text))
		require.NoError(t, err)
		late[r], err = hooks.NewDelayed(ctx, e, d)
		if err == nil {
			t.Cleanup(late[r].Close)
		}
		return late[r], err
	}), late
}

// oneStep hands rank r's gradients over in reverse order and returns what came, in parameter order.
func (g *rig) oneStep(ctx context.Context, params []ddp.Param, x []float32) ([]float32, error) {
	at := len(x)
	for i := len(params) - 1; i >= 0; i-- {
		n := params[i].Len()
		if err := errors.Join(g.write(i, x[at-n:at]), g.red.Ready(i)); err != nil {
			return nil, err
		}
		at -= n
	}
	if err := g.red.Wait(ctx); err != nil {
		return nil, err
	}
	var out []float32
	for i := range params {
		y, err := g.read(i)
		if err != nil {
			return nil, err
		}
		out = append(out, y...)
	}
	return out, nil
}

// steps runs a step on all ranks.
func steps(t testing.TB, ctx context.Context, ranks []*rig, params []ddp.Param, x [][]float32) [][]float32 {
	t.Helper()
	out := make([][]float32, len(ranks))
	errs := each(len(ranks), func(r int) (err error) {
		out[r], err = ranks[r].oneStep(ctx, params, x[r])
		return err
	})
	require.NoError(t, errors.Join(errs...))
	return out
}

func deadline(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// TestDelayedGolden is the worked case: plain SGD from zero at a constant rate, every rank's weights after every step.
func TestDelayedGolden(t *testing.T) {
	b, err := os.ReadFile("../compress/all/testdata/golden/dga-delay3.json")
	require.NoError(t, err)
	var g struct {
		Config struct {
			Delay int
			LR    float64
		}
		Shape        []int
		Ranks, Steps int
		Grads        [][][]float32
		Weights      [][][]float64
	}
	require.NoError(t, json.Unmarshal(b, &g))
	params := []ddp.Param{{Name: "w", Shape: g.Shape}}
	for _, dev := range []kernels.Device{kernels.CPU(), kernels.Lazy()} {
		ctx := deadline(t)
		ranks, late := lateRigs(t, ctx, g.Ranks, dev, params, "dense", hooks.Delay{Steps: g.Config.Delay}, nil)
		w := make([][]float32, g.Ranks)
		for r := range w {
			w[r] = make([]float32, params[0].Len())
			late[r].SetRate(g.Config.LR)
		}
		for step := range g.Steps {
			for r, x := range steps(t, ctx, ranks, params, g.Grads[step]) {
				top := 0.0
				for _, y := range g.Weights[step][r] {
					top = max(top, math.Abs(y))
				}
				for j := range x {
					w[r][j] -= float32(g.Config.LR) * x[j]
					require.InDelta(t, g.Weights[step][r][j], w[r][j], 1e-5*top, "%s, step %d, rank %d, element %d", dev.Name(), step, r, j)
				}
			}
		}
	}
}

// Without a delay the inner hook is as it would be alone, bit for bit.
func TestDelayOfNothing(t *testing.T) {
	for _, text := range []string{"dense", "topk:ratio=0.05", "dgc:ratio=0.01", "powersgd:rank=2"} {
		ctx := deadline(t)
		plain := rigs(t, ctx, 3, kernels.CPU(), model, text, nil)
		late, _ := lateRigs(t, ctx, 3, kernels.CPU(), model, text, hooks.Delay{}, nil)
		for step := range 4 {
			g := draw(uint64(step), 3, modelLen())
			want, got := steps(t, ctx, plain, model, g), steps(t, ctx, late, model, g)
			for r := range want {
				sameBits(t, want[r], got[r])
			}
		}
	}
}

// TestDelayedFormula: at step i what is applied is (g(i) - g(i-D)) + mean(i-D) with the mean of the inner hook as it would be alone, and the
// correction scaled to the rate of its step. It holds across a rebuild and across a save and a restore.
func TestDelayedFormula(t *testing.T) {
	const size, total = 3, 9
	rate := func(step int) float64 { return []float64{1, 2, 4, 0, 8, 4, 2, 1, 0.5}[step] } // powers of two scale exactly
	for k, text := range []string{"dense", "topk:ratio=0.05", "powersgd:rank=2"} {
		for _, d := range []int{1, 2, 5} {
			for _, dev := range []kernels.Device{kernels.CPU(), kernels.Lazy()}[(k+d)%2 : (k+d)%2+1] {
				for _, bare := range []bool{false, true} {
					for _, restart := range []int{-1, d - 1, 6} {
						name := fmt.Sprintf("%s/%s/D=%d/uncorrected=%v/restart=%d", dev.Name(), text, d, bare, restart)
						t.Run(name, func(t *testing.T) {
							ctx := deadline(t)
							set := func(_ *hooks.Config, c *ddp.Config) { c.BucketBytes, c.FirstBytes = 6000, 5000 }
							plain := rigs(t, ctx, size, dev, model, text, set)
							delay := hooks.Delay{Steps: d, Uncorrected: bare}
							ranks, late := lateRigs(t, ctx, size, dev, model, text, delay, set)
							var g, mean [][][]float32
							for step := range total {
								if step == restart {
									fresh, again := lateRigs(t, ctx, size, dev, model, text, delay, set)
									for r := range again {
										snap, err := late[r].Save()
										require.NoError(t, err)
										require.NoError(t, again[r].Restore(snap))
									}
									ranks, late = fresh, again
								}
								g = append(g, draw(uint64(step), size, modelLen()))
								mean = append(mean, steps(t, ctx, plain, model, g[step]))
								for r := range late {
									late[r].SetRate(rate(step))
								}
								got := steps(t, ctx, ranks, model, g[step])
								for r := range got {
									want := make([]float32, modelLen())
									for j := range want {
										switch old := step - d; {
										case bare && old >= 0:
											want[j] = mean[old][r][j]
										case bare:
										case old >= 0 && rate(step) != 0:
											k := float32(rate(old) / rate(step))
											want[j] = (g[step][r][j] - k*g[old][r][j]) + k*mean[old][r][j]
										default:
											want[j] = g[step][r][j]
										}
									}
									sameBits(t, want, got[r])
								}
							}
							for r := range late {
								require.NoError(t, late[r].Drain())
							}
							g0 := draw(77, size, modelLen())
							first := steps(t, ctx, ranks, model, g0)
							if !bare {
								sameBits(t, g0[1], first[1])
							}
						})
					}
				}
			}
		}
	}
}

// The buckets are laid out anew while exchanges of the first step are under way.
func TestDelayedRebuild(t *testing.T) {
	run := func(rebuild bool) (all [][]float32) {
		ctx := deadline(t)
		ranks, _ := lateRigs(t, ctx, 2, kernels.Lazy(), model, "dense", hooks.Delay{Steps: 2}, func(_ *hooks.Config, c *ddp.Config) {
			c.BucketBytes, c.FirstBytes = 6000, 5000
			if !rebuild {
				c.Moved = nil
			}
		})
		for step := range 5 {
			g := draw(uint64(step), 2, modelLen())
			errs := each(2, func(r int) error {
				for _, i := range []int{2, 0, 1, 3, 6, 5, 4} {
					at := 0
					for _, p := range model[:i] {
						at += p.Len()
					}
					if err := errors.Join(ranks[r].write(i, g[r][at:at+model[i].Len()]), ranks[r].red.Ready(i)); err != nil {
						return err
					}
				}
				return ranks[r].red.Wait(ctx)
			})
			require.NoError(t, errors.Join(errs...))
			for i := range model {
				x, err := ranks[1].read(i)
				require.NoError(t, err)
				all = append(all, x)
			}
		}
		require.Equal(t, rebuild, ranks[0].moved == 1)
		return all
	}
	want, got := run(false), run(true)
	for i := range want {
		sameBits(t, want[i], got[i]) // two ranks: a mean of two does not depend on who adds
	}
}

func TestDelayedRefuses(t *testing.T) {
	ctx := deadline(t)
	_, late := lateRigs(t, ctx, 1, kernels.CPU(), model, "dense", hooks.Delay{Steps: 1}, nil)
	_, err := hooks.NewDelayed(ctx, late[0], hooks.Delay{Dev: kernels.CPU(), Steps: 1})
	require.ErrorContains(t, err, "add up")
	mk := compressed(t, "dgc")
	newWorld(t, 1, kernels.CPU(), 1000, model, func(ctx context.Context, cfg hooks.Config) (*hooks.Engine, error) {
		e, err := mk(ctx, cfg)
		require.NoError(t, err)
		_, err = hooks.NewDelayed(ctx, e, hooks.Delay{Dev: kernels.CPU(), Steps: 1})
		require.ErrorContains(t, err, "momentum 0.9")
		_, err = hooks.NewDelayed(ctx, e, hooks.Delay{Dev: kernels.CPU(), Steps: -1})
		require.ErrorContains(t, err, "-1")
		return e, nil
	}, nil)
}

// A rank that dies while exchanges are late ends the others.
func TestDelayedFails(t *testing.T) {
	ctx := deadline(t)
	ranks, late := lateRigs(t, ctx, 3, kernels.CPU(), model, "dense", hooks.Delay{Steps: 2}, nil)
	broken := errors.New("a cosmic ray")
	errs := each(3, func(r int) error {
		for step := range 10 {
			if r == 1 && step == 4 {
				late[r].Abort(broken)
				return broken
			}
			if _, err := ranks[r].oneStep(ctx, model, draw(uint64(step), 3, modelLen())[r]); err != nil {
				return err
			}
		}
		return nil
	})
	for r, err := range errs {
		require.ErrorContains(t, err, "cosmic ray", "rank %d", r)
	}
	require.NoError(t, ctx.Err())
}

func TestDelayedRestoreRefuses(t *testing.T) {
	for want, change := range map[string]func(compress.Snapshot){
		`"delayed/step" has 0 bytes`:         func(s compress.Snapshot) { delete(s, "delayed/step") },
		`"delayed/step" is 1844674407370955`: func(s compress.Snapshot) { s["delayed/step"] = bytes.Repeat([]byte{255}, 8) },
		`"delayed/1/rate" has 3 bytes`:       func(s compress.Snapshot) { s["delayed/1/rate"] = s["delayed/1/rate"][:3] },
		`"conv2/delayed/0/mean" has 4 bytes`: func(s compress.Snapshot) { s["conv2/delayed/0/mean"] = make([]byte, 4) },
		`"bias/delayed/1/g" has 0 bytes`:     func(s compress.Snapshot) { delete(s, "bias/delayed/1/g") },
	} {
		ctx := deadline(t)
		ranks, late := lateRigs(t, ctx, 1, kernels.Lazy(), model, "topk", hooks.Delay{Steps: 2}, nil)
		for step := range 3 {
			steps(t, ctx, ranks, model, draw(uint64(step), 1, modelLen()))
		}
		snap, err := late[0].Save()
		require.NoError(t, err)
		change(snap)
		require.ErrorContains(t, late[0].Restore(snap), want)
	}
}
