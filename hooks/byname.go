package hooks

import (
	"context"
	"fmt"
	"path"
	"slices"

	"github.com/gradpress/gradpress/compress"
	"github.com/gradpress/gradpress/ddp"
)

// Rule serves the parameters whose name matches Pattern, as path.Match reads it with "/" as separator, and for which Fits, if set, is true.
type Rule struct {
	Pattern string
	Fits    func(ddp.Param) bool
	Method  compress.Method
}

func (r Rule) matches(p ddp.Param) bool {
	ok, _ := path.Match(r.Pattern, p.Name) // a bad pattern is refused by PerParameter
	return ok && (r.Fits == nil || r.Fits(p))
}

// PerParameter serves each parameter by the first rule that matches it, whatever its size, and the others as Compressed does with rest.
// All methods must own the same momentum, for the optimizer has one. A rule that serves nothing is an error when the layout is made.
func PerParameter(ctx context.Context, cfg Config, rules []Rule, rest compress.Method) (*Engine, error) {
	rules = slices.Clone(rules)
	for i, r := range rules {
		if _, err := path.Match(r.Pattern, ""); err != nil {
			return nil, fmt.Errorf("hooks: pattern %q: %w", r.Pattern, err)
		}
		if r.Method.Name == "dense" {
			rules[i].Method = compress.Dense(rest.Momentum)
		} else if r.Method.Momentum != rest.Momentum {
			return nil, fmt.Errorf("hooks: %s applies momentum %v and %s %v: the optimizer can make up for one of them only",
				r.Method.Text, r.Method.Momentum, rest.Text, rest.Momentum)
		}
	}
	others := bySize(rest)
	e, err := New(ctx, cfg, rest.Momentum, func(p ddp.Param) Choice {
		if i := serves(rules, p); i >= 0 {
			c := Choice{Method: rules[i].Method}
			if c.Method.Across {
				c.Pool = fmt.Sprintf("of rule %d", i)
			}
			return c
		}
		return others(p)
	})
	if err != nil {
		return nil, err
	}
	e.accept = func(params []ddp.Param) error {
		used := make([]bool, len(rules))
		for _, p := range params {
			if i := serves(rules, p); i >= 0 {
				used[i] = true
			}
		}
		for i, r := range rules {
			if !used[i] {
				return fmt.Errorf("hooks: no parameter is left for pattern %q (%s)", r.Pattern, r.Method.Text)
			}
		}
		return nil
	}
	return e, nil
}

// serves is the rule that serves p, or -1.
func serves(rules []Rule, p ddp.Param) int {
	return slices.IndexFunc(rules, func(r Rule) bool { return r.matches(p) })
}
