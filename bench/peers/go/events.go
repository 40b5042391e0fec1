package main

import (
	"math/rand"
	"strconv"
	"time"
)

// filler is what answers and bodies are made of.
var filler = func() []byte {
	bytes := make([]byte, 64<<10)
	for i := range bytes {
		bytes[i] = "abcdefghijklmnopqrstuvwxyz012345"[(i*7+i>>5)&31]
	}
	return bytes
}()

const eventBytes = 1024

// ticks calls send with one event after the other, each with the time at which it is due to be sent. The first comes
// at a random moment of the interval, as with requests that did not begin together.
func ticks(m *mode, send func(event []byte, last bool)) {
	next := time.Now().Add(time.Duration(rand.Int63n(int64(m.every))))
	for i := 0; i < m.events; i++ {
		time.Sleep(time.Until(next))
		next = next.Add(m.every)
		event := make([]byte, 0, eventBytes)
		event = append(event, "data: "...)
		event = strconv.AppendInt(event, time.Now().UnixNano(), 10)
		event = append(event, ' ')
		event = append(event, filler[:eventBytes-2-len(event)]...)
		event = append(event, '\n', '\n')
		send(event, i == m.events-1)
	}
}
