package hooks

import (
	"fmt"

	"github.com/gradpress/gradpress/compress"
)

// Warmup is m, but for the first so many steps everything is sent dense. A momentum that m owns is applied to the mean meanwhile, and
// handed over to m when it takes over, if m keeps it under the name "u" as dense does. m's own schedule begins then.
func Warmup(m compress.Method, steps int) (compress.Method, error) {
	switch {
	case steps < 0:
		return m, fmt.Errorf("hooks: warm-up of %d steps, want 0 or more", steps)
	case m.Name == "dense":
		return m, fmt.Errorf("hooks: warm-up before %s: it is dense already", m.Text)
	case steps == 0:
		return m, nil
	}
	w := m
	w.Text = fmt.Sprintf("%s after %d dense steps", m.Text, steps)
	w.Warmup = steps + m.Warmup
	w.New = compress.DenseFirst(m.New, m.Momentum, steps)
	if m.Small != nil {
		w.Small = compress.DenseFirst(m.Small, m.Momentum, steps)
	}
	return w, nil
}
