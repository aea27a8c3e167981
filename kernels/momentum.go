package kernels

//go:generate go run -C _generate ./momentum -out ../momentum_amd64.s -stubs ../momentum_amd64.go -pkg kernels

// Correct is DGC's momentum correction (Lin et al. 2018, section 3.2):
//
//	for i := range g { u[i] = m*u[i] + g[i]; v[i] += u[i] }
//
// or, with nesterov, u[i] = m * (u[i] + g[i]); v[i] += u[i] + g[i].
func Correct(s Stream, u, v, g Buf[float32], m float32, nesterov bool) {
	sameLen("Correct", u.n, g.n)
	sameLen("Correct", v.n, g.n)
	s.Launch(Kernel{Op: &correctOp, N: g.n, Args: [maxArgs]Arg{u.arg(), v.arg(), g.arg(), f32(m), flag(nesterov)}})
}

var correctOp = Op{"correct", func(k *Kernel) {
	u, v, g, m := slice[float32](k.Args[0]), slice[float32](k.Args[1]), slice[float32](k.Args[2]), k.Args[3].f32()
	u, v = u[:len(g)], v[:len(g)]
	if k.Args[4].Bits != 0 {
		for i, x := range g {
			w := m * (u[i] + x)
			u[i] = w
			v[i] += w + x
		}
		return
	}
	for avx2 && len(g) >= 32 {
		n := correctAVX2(u, v, g[:min(len(g), piece)], m)
		u, v, g = u[n:], v[n:], g[n:]
	}
	for i, x := range g {
		w := float32(m*u[i]) + x
		u[i] = w
		v[i] += w
	}
}}

// Momentum is the optimizer's rule applied to a mean gradient g, which it replaces:
//
//	for i := range g { u[i] = m*u[i] + g[i]; g[i] = u[i] }
//
// or, with nesterov, g[i] += m * u[i] after the same update of u.
func Momentum(s Stream, u, g Buf[float32], m float32, nesterov bool) {
	sameLen("Momentum", u.n, g.n)
	s.Launch(Kernel{Op: &momentumOp, N: g.n, Args: [maxArgs]Arg{u.arg(), g.arg(), f32(m), flag(nesterov)}})
}

var momentumOp = Op{"momentum", func(k *Kernel) {
	u, g, m := slice[float32](k.Args[0]), slice[float32](k.Args[1]), k.Args[2].f32()
	u = u[:len(g)]
	nesterov := k.Args[3].Bits != 0
	for i, x := range g {
		w := float32(m*u[i]) + x
		u[i] = w
		if nesterov {
			w = x + float32(m*w)
		}
		g[i] = w
	}
}}

func flag(b bool) Arg {
	if b {
		return u64(1)
	}
	return u64(0)
}
