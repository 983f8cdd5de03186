package plane

import "time"

// ChatWork is something that a chat surface has taken upon itself: an event to be answered,
// a run to be followed, a link whose end the thread hears of. It is written down before the
// event is acknowledged, and one replica at a time holds it.
type ChatWork struct {
	ID       string // the event's own, so that one that comes twice is one
	Kind     string
	Body     []byte // sealed in the store
	By       string // the chat's id of whoever it comes from
	Channel  string
	Run      RunID
	Message  string // id of our message in the channel, once it is there
	Attempts int    // how often it was taken up and did not come to rest
	Owner    string
	At       time.Time
}

// ChatCard is one message with buttons that asks one person. Its buttons name it by a token
// of which the store keeps the hash.
type ChatCard struct {
	Hash    string
	Subject string // what is asked about: an approval, a call, or a run's answer
	Asked   string // the chat's id of whoever is asked
	Channel string
	Message string // "" until it is posted
	State   string // open, over
	At      time.Time
}
