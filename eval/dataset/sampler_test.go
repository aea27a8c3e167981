package dataset

import (
	"fmt"
	"slices"
	"testing"
)

func TestSamplerMatchesOneWorker(t *testing.T) {
	for _, n := range []int{1, 5, 60, 61} {
		for _, size := range []int{1, 2, 4, 7} {
			for _, batch := range []int{1, 3, 8} {
				t.Run(fmt.Sprintf("n%d/N%d/b%d", n, size, batch), func(t *testing.T) {
					const epochs = 3
					one, err := NewSampler(n, size*batch, 0, 1, 9)
					if err != nil {
						t.Fatal(err)
					}
					var workers []*Sampler
					for rank := range size {
						s, err := NewSampler(n, batch, rank, size, 9)
						if err != nil {
							t.Fatal(err)
						}
						workers = append(workers, s)
					}
					steps := one.Steps(epochs)
					if steps*size*batch < epochs*n || (steps-1)*size*batch >= epochs*n {
						t.Fatalf("%d steps for %d epochs", steps, epochs)
					}
					var order []int32
					for step := range steps {
						var together []int32
						for _, s := range workers {
							together = append(together, s.Batch(step)...)
						}
						if want := one.Batch(step); !slices.Equal(together, want) {
							t.Fatalf("step %d: workers have %v, one worker %v", step, together, want)
						}
						order = append(order, together...)
					}
					for e := range epochs {
						seen := make([]int, n)
						for _, i := range order[e*n : (e+1)*n] {
							seen[i]++
						}
						for i, times := range seen {
							if times != 1 {
								t.Fatalf("epoch %d has image %d %d times", e, i, times)
							}
						}
					}
				})
			}
		}
	}
}

func TestSamplerOrder(t *testing.T) {
	batch := func(seed uint64, step int) []int32 {
		s, err := NewSampler(1000, 100, 0, 1, seed)
		if err != nil {
			t.Fatal(err)
		}
		return slices.Clone(s.Batch(step))
	}
	first := batch(1, 0)
	// Equal by chance, or in order, once in 1000!/900! > 1e290.
	if slices.IsSorted(first) || slices.Equal(first, batch(2, 0)) || slices.Equal(first, batch(1, 10)) {
		t.Error("not shuffled, or the same for another seed or epoch")
	}
	s, err := NewSampler(1000, 100, 0, 1, 1)
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []int{25, 3, 14, 0, 25} { // as a resumed run would jump
		if got, want := s.Batch(step), batch(1, step); !slices.Equal(got, want) {
			t.Errorf("step %d depends on the steps before it", step)
		}
	}
}

func TestStreams(t *testing.T) {
	for _, c := range []struct{ n, batch, steps, size int }{
		{2, 1, 1, 1}, {50, 2, 4, 3}, {49, 2, 4, 3}, {1001, 5, 10, 2}, {1000, 3, 7, 4}, {97, 1, 5, 7},
	} {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			tokens := make([]int32, c.n)
			for i := range tokens {
				tokens[i] = int32(i)
			}
			length := (c.n - 1) / (c.batch * c.size)
			for rank := range c.size {
				s, err := NewStreams(tokens, c.batch, c.steps, rank, c.size)
				if err != nil {
					t.Fatal(err)
				}
				if s.Steps() != length/c.steps {
					t.Fatalf("%d steps, want %d", s.Steps(), length/c.steps)
				}
				in, next := make([]int32, c.steps*c.batch), make([]int32, c.steps*c.batch)
				for step := range 2*s.Steps() + 1 {
					if reset := s.Batch(step, in, next); reset != (step%s.Steps() == 0) {
						t.Errorf("rank %d, step %d: reset is %v", rank, step, reset)
					}
					for j := range c.batch {
						// Global stream rank*b+j is the same whichever way the workers are divided.
						start := (rank*c.batch+j)*length + step%s.Steps()*c.steps
						for k := range c.steps {
							if at := k*c.batch + j; int(in[at]) != start+k || int(next[at]) != start+k+1 {
								t.Fatalf("rank %d, step %d, stream %d, token %d: %d then %d, want %d then %d",
									rank, step, j, k, in[at], next[at], start+k, start+k+1)
							}
						}
					}
				}
			}
		})
	}
}

func TestSamplerAndStreamsReject(t *testing.T) {
	for _, c := range []struct {
		n, batch, steps, rank, size int
		part                        string
	}{
		{100, 0, 1, 0, 1, "batch is 0"},
		{100, 1, 1, 2, 2, "rank 2 of 2"},
		{100, 1, 1, -1, 2, "rank -1 of 2"},
		{100, 1, 1, 0, 0, "rank 0 of 0"},
		{0, 1, 1, 0, 1, "0 "},
	} {
		_, err := NewSampler(c.n, c.batch, c.rank, c.size, 1)
		wantError(t, err, c.part)
		_, err = NewStreams(make([]int32, c.n), c.batch, c.steps, c.rank, c.size)
		wantError(t, err, c.part)
	}
	_, err := NewStreams(make([]int32, 100), 1, 0, 0, 1)
	wantError(t, err, "0 tokens a step")
	_, err = NewStreams(make([]int32, 40), 2, 10, 0, 2) // one short
	wantError(t, err, "40 tokens", "2 workers", "2 streams", "10 tokens")
}
