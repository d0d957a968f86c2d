//! What the parties say to each other: rollouts and their legal moves, events, triplets, model servers, routes.
